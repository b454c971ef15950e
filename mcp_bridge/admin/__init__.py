from mcp_bridge.admin import tokens, toolsets, workflows

__all__ = ["tokens", "toolsets", "workflows"]
