"""What the admin's templates share: `{% load desk %}`. Texts of engines and agents are hostile; nothing here
is marked as safe."""

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.contrib.humanize.templatetags.humanize import NaturalTimeFormatter
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.timesince import timesince, timeuntil
from django.utils.translation import gettext

register = template.Library()
DASH = "-"


@register.filter
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


@register.filter
def cut_short(text: str, length: int) -> str:
    """Keeps at most `length` characters, at a cost that thousands can pay, unlike Django's Truncator."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


@register.filter
def number(count: int) -> str:
    return f"{count:,}"


@register.inclusion_tag("unfold/helpers/label.html")
def badge(text: Any, kind: str = "", title: str = "", href: str = "") -> dict[str, Any]:
    """A coloured label, with `href` a link. Kinds: success, warning, danger, info, and plain by default."""
    return {"text": text, "type": kind, "label_title": title, "href": href}


def distance(moment: datetime) -> str:
    """`5 minutes ago`, `just now` or `in 5 minutes`."""
    now = timezone.now()
    ahead = moment > now
    if abs(moment - now) < timedelta(minutes=1):
        return gettext("in a moment") if ahead else gettext("just now")
    words = NaturalTimeFormatter
    if ahead:
        return gettext("in %s") % timeuntil(moment, now, time_strings=words.future_substrings, depth=1)
    return gettext("%s ago") % timesince(moment, now, time_strings=words.past_substrings, depth=1)


@register.inclusion_tag("catalogue/admin/parts/moment.html")
def moment(at: datetime | None, *, exactly: bool = False) -> dict[str, Any]:
    """`5 minutes ago` with the time in the reader's zone as its tooltip; `exactly` shows both."""
    if at is None:
        return {}
    local = timezone.localtime(at)
    return {"at": local, "exact": f"{local:%Y-%m-%d %H:%M:%S %Z}", "told": distance(at), "exactly": exactly}


@register.inclusion_tag("catalogue/admin/parts/page_link.html", takes_context=True)
def page_link(context: Context, text: Any, view: str, key: Any = None, query: str = "") -> dict[str, Any]:
    """A link to an object's page, such as `catalogue_source_change`, or without a key to a list; only the
    text for users who may not open it."""
    app, model, _ = view.rsplit("_", 2)
    may = any(context["request"].user.has_perm(f"{app}.{verb}_{model}") for verb in ("view", "change"))
    href = reverse(f"admin:{view}", args=[] if key is None else [key]) + query if may else ""
    return {"text": text, "href": href}
