"""From a request that somebody else wrote back to a tool's arguments: the heart of the guard.

Whoever wrote it may have been talked into anything. So nothing of it is sent: the tool's arguments are read
from it, and whatever is none of them is refused. What is sent is made of the arguments, by `build_request`.
"""

from typing import Any

from connectors.http_tools.reading_body import read_body
from connectors.http_tools.reading_fields import read_headers, read_query
from connectors.http_tools.reading_url import read_path, split_url
from connectors.http_tools.refusing import NotThisTool, shown
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.http_tools.tool import HttpOperation

__all__ = ["NotThisTool", "read_arguments"]


def read_arguments(
    operation: HttpOperation, spec: HTTPRequestSpec, *, base_url: str, input_schema: dict[str, Any]
) -> dict[str, Any]:
    """The arguments for which the tool makes this very request. Raises NotThisTool.

    They are of the types that the schema names, where texts can be; it is not checked that they fit it.
    """
    if spec.method != operation.method:
        raise NotThisTool(f"The tool's method is {operation.method}, not {shown(spec.method)}.")
    url = split_url(spec.url, base_url)
    return (
        read_path(operation, url.path, base_url, input_schema)
        | read_query(operation, url.query, spec.query_params, input_schema)
        | read_headers(operation, spec.headers, input_schema)
        | read_body(operation, spec.body, input_schema)
    )
