"""Who may enter: tokens for programs, accounts for people."""

from mcp_bridge.admin import tokens, toolsets, workflows

__all__ = ["tokens", "toolsets", "workflows"]
