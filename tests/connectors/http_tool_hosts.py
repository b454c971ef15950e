"""What an operator lets HTTP tools reach, while a test runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from connectors.network.policy import allow_http_tool_hosts


@contextmanager
def http_tool_hosts(text: str) -> Iterator[None]:
    """As if CATALOGUE_HTTP_TOOL_HOSTS were this; afterwards nothing is allowed."""
    allow_http_tool_hosts(text)
    try:
        yield
    finally:
        allow_http_tool_hosts("")
