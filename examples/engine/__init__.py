"""A small workflow engine behind a Conductor-like REST API, made to be connected to."""
