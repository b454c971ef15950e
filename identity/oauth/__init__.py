"""The embedded authorization server, with which MCP clients sign users in: OAuth 2.1."""
