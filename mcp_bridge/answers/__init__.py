"""What came of a run, as MCP answers carry it."""
