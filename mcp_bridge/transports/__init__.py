"""Streamable HTTP and stdio."""
