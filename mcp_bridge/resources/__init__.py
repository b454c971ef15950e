"""What clients can read beside calling tools: the catalogue, and the caller's executions."""

from mcp_bridge.resources.methods import RESOURCES, ResourceMethods, find_kind, listed_resources
from mcp_bridge.resources.resource import ResourceKind, UnknownResource

__all__ = [
    "RESOURCES",
    "ResourceKind",
    "ResourceMethods",
    "UnknownResource",
    "find_kind",
    "listed_resources",
]
