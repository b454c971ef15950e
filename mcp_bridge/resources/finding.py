"""From an address to the kind of resource that it belongs to."""

from collections.abc import Mapping

from mcp_bridge.resources.for_executions import EXECUTION_RESOURCES
from mcp_bridge.resources.for_workflows import WORKFLOW_RESOURCES
from mcp_bridge.resources.resource import ResourceKind, UnknownResource

RESOURCES = (*WORKFLOW_RESOURCES, *EXECUTION_RESOURCES)
LONGEST_ADDRESS = 2_000
SHOWN = 100
"""Characters of an address that a message repeats."""


def find_kind(uri: str) -> tuple[ResourceKind, Mapping[str, str]]:
    """The kind, and the variables of its template. Raises UnknownResource."""
    if len(uri) > LONGEST_ADDRESS:
        raise UnknownResource(
            f"The address has {len(uri):,} characters; none of ours has more than {LONGEST_ADDRESS:,}."
        )
    scheme, _, rest = uri.partition(":")
    # Of an address only the scheme is the same in capitals (RFC 3986).
    address = f"{scheme.lower()}:{rest}"
    for kind in RESOURCES:
        found = kind.template.match(address)
        if found is not None and "#" not in address:
            _check_query(kind, address)
            return kind, {name: value for name, value in found.items() if isinstance(value, str)}
    known = ", ".join(str(kind.template) for kind in RESOURCES)
    raise UnknownResource(f"Unknown resource: {uri[:SHOWN]!r}. The addresses here are {known}.")


def _check_query(kind: ResourceKind, address: str) -> None:
    """The template's own matching passes over what it does not know."""
    _, _, query = address.partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&") if pair]
    known = kind.template.query_variable_names
    if unknown := [name for name in names if name not in known]:
        raise UnknownResource(f"Unknown parameter {unknown[0][:SHOWN]!r}. The address is {kind.template}.")
    if len(names) > len(set(names)):
        raise UnknownResource(f"A parameter is there twice. The address is {kind.template}.")
