"""What clients can read beside calling tools: the catalogue, and the caller's executions."""

from mcp_bridge.resources.finding import RESOURCES, find_kind
from mcp_bridge.resources.methods import ResourceMethods, listed_resources
from mcp_bridge.resources.resource import ResourceKind, UnknownResource

__all__ = [
    "RESOURCES",
    "ResourceKind",
    "ResourceMethods",
    "UnknownResource",
    "find_kind",
    "listed_resources",
]
