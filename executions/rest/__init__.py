"""The REST views of executions."""
