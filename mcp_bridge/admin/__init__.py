"""Who may enter: tokens for programs, accounts for people."""

from mcp_bridge.admin import accounts, overview, tokens, toolsets, workflows

__all__ = ["accounts", "overview", "tokens", "toolsets", "workflows"]
