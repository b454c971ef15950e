"""Addresses with ids in them."""

from urllib.parse import quote

from connectors.errors import Rejected


def fill_path(path: str, /, **ids: str) -> str:
    """`/runs/{run_id}` with the id in its place, whatever characters that has.

    Raises Rejected for an id that would lead to another path.
    """
    for name, value in ids.items():
        # Proxies resolve "." and ".." even when they are percent-encoded, and so would reach another path.
        if value in ("", ".", ".."):
            raise Rejected(f"{value!r} cannot be used as {name} in the engine's address.")
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return path
