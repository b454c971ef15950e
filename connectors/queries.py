"""The part of a URL after the question mark."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote_plus, urlencode

import httpx2


def with_query(url: httpx2.URL, query: Sequence[tuple[str, str]]) -> httpx2.URL:
    """What the URL has already, and then `query`."""
    return _with_parts(url, _parts(url), query)


def with_query_of_ours(url: httpx2.URL, query: Sequence[tuple[str, str]]) -> httpx2.URL:
    """`query` in place of whatever the URL has under these names."""
    names = {name for name, _ in query}
    kept = [part for part in _parts(url) if unquote_plus(part.partition("=")[0]) not in names]
    return _with_parts(url, kept, query)


def _parts(url: httpx2.URL) -> list[str]:
    return [part for part in url.query.decode("ascii").split("&") if part]


def _with_parts(url: httpx2.URL, parts: Iterable[str], query: Sequence[tuple[str, str]]) -> httpx2.URL:
    if not query:
        return url
    written = "&".join([*parts, urlencode(query, quote_via=quote)])
    return url.copy_with(query=written.encode("ascii"))
