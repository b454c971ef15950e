"""Who may enter: tokens for programs, accounts for people."""

from mcp_bridge.admin import accounts, tokens, toolsets, workflows

__all__ = ["accounts", "tokens", "toolsets", "workflows"]
