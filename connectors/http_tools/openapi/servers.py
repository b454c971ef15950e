"""Where a document's API is, and which operations are elsewhere."""

import re
from collections.abc import Iterator
from typing import Any

from connectors.http_tools.openapi.document import Document, NoTool, UnusableDocument, quoted
from connectors.network.policy import normalise_base_url

VARIABLE = re.compile(r"\{([^{}]*)\}")
MAX_SERVERS = 50


def base_url_of(document: Document, given: str) -> str:
    """The base URL that was given, else that of the document's first server. Raises UnusableDocument."""
    if given:
        return _normalised(given)
    servers = list(_urls(document.value.get("servers")))
    url = servers[0] if servers else "/"
    if url.startswith(("http://", "https://")):
        return _normalised(url)
    fault = "names no server" if url == "/" else f"only says that its server is {quoted(url)}"
    raise UnusableDocument(
        f"The document {fault}. Give the base URL, what all addresses of the API begin with: --base-url at "
        "the command, base_url in REST, the field of that name in the admin."
    )


def note_on_servers(document: Document, base_url: str) -> str:
    """What else there could be; empty where there is nothing to say."""
    urls = [url.rstrip("/") for url in _urls(document.value.get("servers"))]
    others = [url for url in urls if url and url != base_url]
    if not others or (base_url in urls and len(urls) == 1):
        return ""
    if others[0].startswith("/") and not base_url.endswith(others[0]):
        return (
            f"The document's addresses begin with {quoted(others[0])}, and the base URL does not end with it."
        )
    shown = ", ".join(others[:5])
    return f"The document also names {shown}; the base URL {base_url} is used." if base_url in urls else ""


def check_server(document: Document, *levels: tuple[dict[str, Any], str], base_url: str) -> None:
    """Raises NoTool for an operation that is served somewhere else.

    `levels`: the operation, then its path item, each with its pointer.
    """
    for raw, pointer in levels:
        if "servers" not in raw:
            continue
        own, usual = list(_urls(raw["servers"])), list(_urls(document.value.get("servers")))
        # With a base URL of the user's, an operation on the document's own server is on that one.
        if not own or base_url in {url.rstrip("/") for url in own} or own[0] in usual[:1]:
            return
        reason = f"It is served at {quoted(own[0])}, not at {base_url}; a source is one API."
        raise NoTool(reason, f"{pointer}/servers")


def _urls(servers: Any) -> Iterator[str]:
    """With defaults in the places of variables."""
    for server in servers[:MAX_SERVERS] if isinstance(servers, list) else ():
        if isinstance(server, dict) and isinstance(url := server.get("url"), str):
            variables = server.get("variables")
            yield _with_defaults(url.strip(), variables if isinstance(variables, dict) else {})


def _with_defaults(url: str, variables: dict[str, Any]) -> str:
    def default_of(found: re.Match[str]) -> str:
        variable = variables.get(found[1])
        default = variable.get("default") if isinstance(variable, dict) else None
        return str(default) if isinstance(default, str | int) else found[0]

    return VARIABLE.sub(default_of, url[:2_000])


def _normalised(url: str) -> str:
    try:
        if "{" in url:
            raise ValueError("Give the base URL, with its variables filled in.")
        return normalise_base_url(url)
    except ValueError as error:
        # Not quoted: it may hold a password.
        raise UnusableDocument(f"The base URL cannot be used. {error}") from None
