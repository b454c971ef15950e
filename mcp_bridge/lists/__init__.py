"""MCP's list of tools: what is in it, in which bytes and pages, and at what cost."""
