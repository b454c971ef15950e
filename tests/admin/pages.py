"""Reading the admin's pages."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.contrib.messages import get_messages
from django.db import models
from django.forms import BoundField, NullBooleanField, PasswordInput
from django.template.response import SimpleTemplateResponse
from django.test import Client
from django.urls import reverse

CHOSEN = {True: "true", False: "false", None: "unknown"}


def list_url(model: type[models.Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def add_url(model: type[models.Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")


def page_url(obj: models.Model) -> str:
    return reverse(f"admin:{obj._meta.app_label}_{obj._meta.model_name}_change", args=[obj.pk])


def shown_in(page: Any) -> dict[str, Any]:
    """What the fields of an import's form show."""
    return {field.html_name: field.value() for field in page.context["form"]}


def errors_in(page: Any) -> dict[str, str]:
    """What the page tells beside the fields of an import's form, as screen readers find it."""
    told_at = {}
    for field in page.context["form"]:
        beside = rf'id="{field.auto_id}_error"[^>]*>(.*?)</div>'
        if found := re.search(beside, page.content.decode(), re.DOTALL):
            told_at[field.html_name] = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found[1])).split())
    return told_at


@contextmanager
def undrawn() -> Iterator[None]:
    """Pages as their views leave them: drawing one takes three times as long as finding out what it shows."""
    with patch.object(SimpleTemplateResponse, "rendered_content", ""):
        yield


def listed(client: Client, url: str, query: dict[str, str] | None = None) -> Any:
    """What a list shows: Django's `ChangeList`."""
    with undrawn():
        page: Any = client.get(url, query)
    assert page.status_code == 200, page.headers
    return page.context_data["cl"]


def press(client: Client, obj: models.Model, button: str) -> Any:
    """Press a button of the object's page."""
    return client.post(reverse(f"admin:{obj._meta.app_label}_{obj._meta.model_name}_{button}", args=[obj.pk]))


def press_and_agree(client: Client, obj: models.Model, button: str) -> Any:
    """Press the button, and answer the question whether tools may be exposed."""
    answer = press(client, obj, button)
    return answer if answer.status_code == 302 else answer_question(client, answer)


def run_action(client: Client, action: str, *objects: models.Model, everything: bool = False) -> Any:
    """Select rows of a list, or all that match, and run one of its actions."""
    selected = {"action": action, "_selected_action": [obj.pk for obj in objects]}
    return client.post(list_url(type(objects[0])), selected | {"select_across": int(everything)})


def answer_question(client: Client, question: Any, **given: Any) -> Any:
    """Confirm what the page of an action asks."""
    hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', question.content.decode())
    return client.post(question.wsgi_request.get_full_path(), dict(hidden) | given)


def told(response: Any) -> str:
    """The messages that the next page shows, as they stand in its HTML."""
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


def text_of(response: Any) -> str:
    """What a person reads: without tags, with entities resolved and white space squeezed."""
    body = response.render() if hasattr(response, "render") and not response.is_rendered else response
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", body.content.decode(), flags=re.DOTALL).replace(
        "<wbr>", ""
    )
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def form_at(client: Client, url: str) -> dict[str, Any]:
    """What the browser would send back of the form at this address if nobody changed anything."""
    with undrawn():
        return form_values(client.get(url))


def form_values(response: Any) -> dict[str, Any]:
    """What the browser would send back of the page's form if nobody changed anything."""
    return {
        field.html_name: value
        for field in response.context_data["adminform"].form
        if not isinstance(field.field.widget, PasswordInput)
        and (value := _sent_value(field)) not in (None, False)
    }


def _sent_value(field: BoundField) -> Any:
    value = field.field.prepare_value(field.value())
    # A choice of three, not a box that is ticked or left out.
    return CHOSEN[value] if isinstance(field.field, NullBooleanField) else value
