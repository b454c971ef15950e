"""Which connector serves which kind of source; other packages add theirs through an entry point."""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from connectors.errors import Misconfigured
from connectors.protocol import Connector

ENTRY_POINT_GROUP = "workflow_catalogue.connectors"

BUILT_IN = {
    "simplified": "connectors.simplified:SimplifiedConnector",
}


def connector_kinds() -> list[str]:
    """Every kind that a source can have, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


@cache
def connector_class(kind: str) -> type[Connector]:
    """The connector for a kind. Raises Misconfigured for an unknown one, naming those that exist."""
    if path := BUILT_IN.get(kind):
        module_name, class_name = path.split(":")
        built_in: type[Connector] = getattr(import_module(module_name), class_name)
        return built_in
    for point in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        added: type[Connector] = point.load()
        return added
    raise Misconfigured(f"Unknown kind of source {kind!r}; known kinds: {', '.join(connector_kinds())}.")
