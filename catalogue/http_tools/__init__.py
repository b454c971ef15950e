"""Calls of HTTP APIs that are declared here as tools: the registry, and its REST door."""
