"""Compares a request that a model wrote with the one that a tool makes of the arguments. The written request
is never sent, so spelling may differ: addresses are decoded once, numbers may be texts where only texts can
be sent, and a query may be part of the URL."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx2

from connectors.errors import Rejected
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.json_schema import pointer_of
from connectors.http_tools.request import ACCEPT, MEDIA_TYPES, form_pairs, query_of, written_json
from connectors.http_tools.tool import HttpOperation, HTTPRequestSpec
from connectors.network.policy import port_of
from connectors.network.redaction import printable, shorten

LONGEST_NAME = 80
MOST_NAMES = 5
Part = tuple[str, str]  # A place in a request and the name there; in a JSON body a pointer


def difference_between(
    written: HTTPRequestSpec, built: HTTPRequestSpec, *, usual: HTTPRequestSpec, operation: HttpOperation
) -> str:
    """The first difference, in a sentence without values, or empty. Parts that the built request shares with
    the `usual` one, such as constants, may be missing."""
    try:
        said = _parts_of(written, built, operation)
        meant, optional = _parts_of(built, built, operation), _parts_of(usual, built, operation)
    except (ValueError, Rejected) as error:
        return str(error)
    if strange := [part for part in said if said[part] != meant.get(part)]:
        return f"{_named(strange)} is not what the arguments make."
    if missing := [part for part in meant if part not in said and meant[part] != optional.get(part)]:
        return f"{_named(missing)} is missing from the request."
    return ""


def _parts_of(spec: HTTPRequestSpec, built: HTTPRequestSpec, operation: HttpOperation) -> dict[Part, str]:
    """The request in one spelling. Raises ValueError or Rejected for an ambiguous one."""
    try:
        url = httpx2.URL(spec.url)
    except httpx2.InvalidURL:
        raise ValueError("the request has no valid URL.") from None
    found = [(("method", ""), spec.method), (("address", ""), _address(url))]
    in_url = parse_qsl(url.query.decode("ascii"), keep_blank_values=True)
    found += [(("query", name), text) for name, text in _texts_by_name(in_url)]
    found += [(("query", name), text) for name, text in _texts_by_name(query_of(spec))]
    found += [
        (("header", name.lower()), value.strip())
        for name, value in spec.headers.items()
        if not _is_usual(name.lower(), value, operation)
    ]
    found += [(("body", name), text) for name, text in _body_parts(spec.body, built.body, operation)]
    parts: dict[Part, str] = {}
    for part, text in found:
        if parts.setdefault(part, text) != text:
            raise ValueError(f"the request says {_named([part])} twice.")
    return parts


def _address(url: httpx2.URL) -> str:
    """Decoded once; user name and fragment count, as no tool's address has them."""
    path = unquote(url.raw_path.decode("ascii").partition("?")[0], errors="strict")
    return " ".join((url.scheme, url.userinfo.decode(), url.host, str(port_of(url)), path, url.fragment))


def _texts_by_name(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        plain = text
        # Blanks in JSON objects and lists mean nothing.
        with suppress(UnreadableJSON):
            plain = written_json(parse_json(text.encode())) if text[:1] in ("{", "[") else text
        found.setdefault(name, []).append(plain)
    return ((name, ",".join(texts)) for name, texts in found.items())


def _is_usual(name: str, value: str, operation: HttpOperation) -> bool:
    usual = {"accept": f"{ACCEPT},*/*", "content-type": MEDIA_TYPES[operation.body_format]}
    return name in usual and _media_types(value) <= _media_types(usual[name])


def _media_types(header: str) -> set[str]:
    return {part.partition(";")[0].strip().lower() for part in header.split(",")}


def _body_parts(body: Any, built: Any, operation: HttpOperation) -> Iterable[tuple[str, str]]:
    if body in (None, {}, ""):
        return ()
    is_form = operation.body_format != "json"
    # Models write bodies as texts, too.
    if isinstance(body, str) and not isinstance(built, str):
        if is_form and body[:1] != "{":
            return _texts_by_name(parse_qsl(body, keep_blank_values=True))
        body = parse_json(body.encode())
    return _texts_by_name(form_pairs(body)) if is_form else _leaves(body, "")


def _leaves(value: Any, pointer: str) -> Iterable[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        # Not by comparison: to Python, 1 and True are the same.
        return ((pointer, json.dumps(value, sort_keys=True)),)
    return (
        leaf for name, inner in value.items() for leaf in _leaves(inner, f"{pointer}{pointer_of([name])}")
    )


def _named(parts: Sequence[Part]) -> str:
    """`query admin, body /price and 3 more`: names, never values."""
    shown = sorted(
        shorten(printable(" ".join(filter(None, part))).replace("\n", " "), LONGEST_NAME) for part in parts
    )
    rest = len(shown) - MOST_NAMES
    return "the " + ", ".join(shown[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
