"""Paths with a query or a fragment: not OpenAPI, but how some tell apart what one address does."""

from urllib.parse import parse_qsl

from connectors.http_tools.openapi.refusals import NoTool, quoted
from connectors.http_tools.tool_config import Constant

MAX_FIELDS = 20


def split_query(path: str, pointer: str) -> tuple[str, list[Constant]]:
    """The path alone, and what goes into the query of every call. Raises NoTool.

    What follows a '#' is never sent: it tells the operations of one address apart.
    """
    plain, mark, query = path.partition("#")[0].partition("?")
    if "{" in query:
        raise NoTool(f"Its path {quoted(path)} has a parameter after the '?'.", pointer)
    if not mark:
        return plain, []
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise NoTool(f"Its path {quoted(path)} has no readable query after the '?'.", pointer) from None
    return plain, [Constant(place="query", name=name, value=value) for name, value in pairs if name]
