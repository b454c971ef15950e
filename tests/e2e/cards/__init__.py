"""Hosts of MCP Apps in a real browser: a page on the official bridge, and the Inspector."""
