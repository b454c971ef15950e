"""The REST API of natural-language requests."""
