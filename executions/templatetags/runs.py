"""The facts on the pages of runs and approvals: `{% load runs %}`."""

from datetime import datetime
from typing import Any

from django import template
from django.template import Context

register = template.Library()


@register.inclusion_tag("executions/admin/fact.html", takes_context=True)
def fact(
    context: Context,
    label: str,
    text: Any = "",
    *,
    at: datetime | None = None,
    view: str = "",
    key: Any = None,
    query: str = "",
    after: str = "",
    title: str = "",
) -> dict[str, Any]:
    """Shows a text, a time, or both; nothing if there is neither. `view`, `key` and `query` are of the page
    to which the text leads, and `title` is its tooltip."""
    page = {"view": view, "key": key, "query": query, "request": context["request"]}
    return page | {"label": label, "text": text, "at": at, "after": after, "title": title}
