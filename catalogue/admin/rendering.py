"""HTML of values in the admin, for pages whose parts are made in Python; templates load `desk` instead. Texts
of engines and agents are hostile: only templates make markup, and they escape."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from catalogue.drift import show_unseen
from catalogue.templatetags import desk
from catalogue.templatetags.desk import DASH, cut_short, duration
from connectors.formats.json import readable_json

__all__ = ["DASH", "cut_short", "duration"]
SHOWN_CHARACTERS = 100_000
SHOWN_CODE = 300_000
SHOWN_NAMES = 20
PARTS = re.compile(r"[^/_.]+[/_.]*|[/_.]+")


def rendered(name: str, **shown: Any) -> SafeString:
    """What a template of `catalogue/admin` shows, such as `parts/chip`."""
    return render_to_string(f"catalogue/admin/{name}.html", shown)


@lru_cache(maxsize=1_000, typed=True)  # Typed: a SafeString differs from an equal str.
def badge(text: str, kind: str = "", *, title: str = "", href: str = "") -> SafeString:
    return rendered("parts/badge", text=text, kind=kind, title=title, href=href)


def chip(text: str) -> SafeString:
    return rendered("parts/chip", text=text)


Group = tuple[str, int, list[str], int]  # Heading, number, first names, number of further ones


def group_of(heading: str, names: list[str]) -> Group:
    return heading, len(names), names[:SHOWN_NAMES], max(0, len(names) - SHOWN_NAMES)


def side_by_side(parts: Iterable[str]) -> SafeString:
    return rendered("parts/side_by_side", parts=list(parts))


def one_a_line(parts: Iterable[str]) -> SafeString:
    return rendered("parts/one_a_line", parts=list(parts))


def wrapped(text: str) -> SafeString:
    return rendered("parts/wrapped", parts=PARTS.findall(text))


def ago(moment: datetime | None) -> str:
    return rendered("parts/moment", **desk.moment(moment))


def exactly(moment: datetime | None) -> str:
    return rendered("parts/moment", **desk.moment(moment, exactly=True))


def shortened(text: str, length: int = 60) -> str:
    """The beginning, with the whole as its tooltip."""
    if len(text) <= length:
        return text or DASH
    return rendered("parts/shortened", whole=text[:1000], text=cut_short(text, length))


def pretty_json(value: Any, *, whole: str = "", uncut: bool = False) -> SafeString:
    return text_block(readable_json(value), whole=whole, uncut=uncut)


def text_block(text: str, *, whole: str = "", unrolled: bool = False, uncut: bool = False) -> SafeString:
    """Verbatim, cut with a note unless `uncut`. `whole`: the address of the uncut text. `unrolled`: without a
    scroll bar."""
    note, is_cut = "", len(text) > SHOWN_CHARACTERS and not uncut
    if is_cut:
        note = f"The first {SHOWN_CHARACTERS:,} of {len(text):,} characters."
        text = text[:SHOWN_CHARACTERS]
    shown = {"text": text, "note": note, "whole": whole if is_cut else "", "unrolled": unrolled}
    return rendered("json", **shown)


def paragraphs(text: str) -> SafeString:
    return rendered("parts/paragraphs", text=text or DASH)


def code_folded(text: str | None) -> SafeString:
    """Shows code of a server as text, never as markup, and what is unseen in it as escapes."""
    text = text or ""
    shown = show_unseen(text[:SHOWN_CODE])
    return rendered("parts/code_folded", text=shown, length=len(text), left=max(0, len(text) - SHOWN_CODE))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    return {"headers": list(headers), "rows": [list(row) for row in rows]}


def link(text: Any, view: str, *args: Any, query: str = "") -> SafeString:
    """A link to an admin page such as `catalogue_source_change`."""
    return rendered("parts/page_link", text=text, href=reverse(f"admin:{view}", args=args) + query)


def link_if_allowed(
    request: HttpRequest, text: Any, view: str, *args: Any, query: str = "", otherwise: Any = None
) -> Any:
    """The text alone, or `otherwise`, for users without permission for the page."""
    app, model, _ = view.rsplit("_", 2)
    if any(request.user.has_perm(f"{app}.{verb}_{model}") for verb in ("view", "change")):
        return link(text, view, *args, query=query)
    return text if otherwise is None else otherwise


def value_in_full(value: Any) -> str:
    match value:
        case None | "" | [] | {}:
            return gettext("empty")
        case bool():
            return "on" if value else "off"
        case str():
            return value
        case list() if all(isinstance(part, str) for part in value):
            return ", ".join(value)
    return json.dumps(value, ensure_ascii=False, indent=2)
