"""HTML of values in the admin. Texts of engines and agents are hostile: everything here escapes."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timesince import timesince, timeuntil

from connectors.formats.json import readable_json

SHOWN_CHARACTERS = 100_000
SHOWN_NAMES = 20
DASH = "-"
PARTS = re.compile(r"[^/_.]+[/_.]*|[/_.]+")


@lru_cache(maxsize=1_000, typed=True)  # Typed: a SafeString differs from an equal str.
def badge(text: str, kind: str = "", *, title: str = "", href: str = "") -> SafeString:
    """A coloured label, with `href` a link. Kinds: success, warning, danger, info, and plain by default."""
    look = {"text": text, "type": kind, "label_title": title, "href": href}
    return render_to_string("unfold/helpers/label.html", look)


def chip(text: str) -> SafeString:
    look = "bg-base-100 font-mono px-1.5 py-0.5 rounded-default text-xs dark:bg-base-800"
    return format_html('<span class="{}" style="overflow-wrap: anywhere">{}</span>', look, text)


Group = tuple[str, int, list[SafeString], int]  # Heading, number, first names, number of further ones


def group_of(heading: str, names: list[str]) -> Group:
    return heading, len(names), list(map(chip, names[:SHOWN_NAMES])), max(0, len(names) - SHOWN_NAMES)


def side_by_side(parts: Iterable[str]) -> SafeString:
    return format_html_join(" ", "{}", ((part,) for part in parts))


def one_a_line(parts: Iterable[str]) -> SafeString:
    return format_html_join(
        "", '<div class="whitespace-nowrap" style="margin: 2px 0">{}</div>', ((part,) for part in parts)
    )


def wrapped(text: str) -> SafeString:
    """A name of up to 64 letters without a space must not push the other columns away."""
    look = "overflow-wrap: anywhere; white-space: normal; min-width: 9rem; max-width: 18rem"
    return format_html('<div style="{}">{}</div>', look, breakable(text))


def breakable(text: str) -> SafeString:
    """Names and addresses, which else break in the middle of a word where their column is narrow."""
    return format_html_join("", "{}<wbr>", ((part,) for part in PARTS.findall(text)))


def ago(moment: datetime | None) -> str:
    """`5 minutes ago` or `in 5 minutes`, with the exact time as its tooltip."""
    if moment is None:
        return DASH
    now = timezone.now()
    ahead = moment > now
    if abs(moment - now) < timedelta(minutes=1):
        shown = "in a moment" if ahead else "just now"
    else:
        shown = f"in {timeuntil(moment, now, depth=1)}" if ahead else f"{timesince(moment, now, depth=1)} ago"
    return format_html('<span title="{}" class="whitespace-nowrap">{}</span>', _exact(moment), shown)


def exactly(moment: datetime | None) -> str:
    return DASH if moment is None else format_html("<span>{} ({})</span>", _exact(moment), ago(moment))


def to_the_millisecond(moment: datetime) -> SafeString:
    """Renders a time for timelines, where the order within a second matters."""
    local = timezone.localtime(moment)
    shown = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03} {local:%Z}"
    return format_html('<span class="whitespace-nowrap">{}</span>', shown)


def duration(milliseconds: int | None) -> str:
    """`850 ms`, `12.3 s`, `4 min 5 s`, on one line."""
    if milliseconds is None:
        return DASH
    minutes, seconds = divmod(milliseconds / 1000, 60)
    if milliseconds < 1000:
        shown = f"{milliseconds} ms"
    else:
        shown = f"{int(minutes)} min {int(seconds)} s" if minutes else f"{seconds:.1f} s"
    return shown.replace(" ", "\N{NO-BREAK SPACE}")


def shortened(text: str, length: int = 60) -> str:
    """The beginning, with the whole as its tooltip."""
    if len(text) <= length:
        return text or DASH
    return format_html('<span title="{}">{}</span>', text[:1000], cut_short(text, length))


def cut_short(text: str, length: int) -> str:
    """Keeps at most `length` characters, at a cost that thousands can pay, unlike Django's Truncator."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


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
    return render_to_string("catalogue/admin/json.html", shown)


def icon_or_address(address: str) -> SafeString:
    """The picture only where the address contains it; nothing is fetched from foreign servers."""
    if not address.startswith("data:"):
        return chip(address)
    return format_html('<img src="{}" alt="" style="height: 2rem; display: inline-block">', address)


def paragraphs(text: str) -> SafeString:
    return format_html('<div style="white-space: pre-line; overflow-wrap: anywhere">{}</div>', text or DASH)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    return {"headers": list(headers), "rows": [list(row) for row in rows]}


def link(text: Any, view: str, *args: Any, query: str = "") -> SafeString:
    """A link to an admin page such as `catalogue_source_change`."""
    return format_html(
        '<a class="text-link" href="{}{}">{}</a>', reverse(f"admin:{view}", args=args), query, text
    )


def link_if_allowed(
    request: HttpRequest, text: Any, view: str, *args: Any, query: str = "", otherwise: Any = None
) -> Any:
    """The text alone, or `otherwise`, for users without permission for the page."""
    app, model, _ = view.rsplit("_", 2)
    if any(request.user.has_perm(f"{app}.{verb}_{model}") for verb in ("view", "change")):
        return link(text, view, *args, query=query)
    return text if otherwise is None else otherwise


def _exact(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S %Z}"


def value_in_full(value: Any) -> str:
    match value:
        case None | "" | [] | {}:
            return "empty"
        case bool():
            return "on" if value else "off"
        case str():
            return value
        case list() if all(isinstance(part, str) for part in value):
            return ", ".join(value)
    return json.dumps(value, ensure_ascii=False, indent=2)
