"""The short name of `mcp_stdio`, for configurations such as `uvx workflow-catalogue stdio`."""

from mcp_bridge.management.commands.mcp_stdio import Command

__all__ = ["Command"]
