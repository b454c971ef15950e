"""Picking workflows for a toolset: found while typing, with what each costs."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.text import Truncator
from unfold.widgets import BASE_INPUT_CLASSES, CHECKBOX_CLASSES

from catalogue.exposure import confirmed_catalogue
from catalogue.models import Workflow
from mcp_bridge.admin.workflows import tokens_by_key

CHOICES = "mcp_bridge/admin/workflow_choices.html"
MOST_SHOWN = 50
SHOWN_DESCRIPTION = 140


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    key: int
    name: str
    description: str
    source: str
    tokens: int | None
    """None where no tool can be made of it."""
    is_exposed: bool
    is_picked: bool


class WorkflowPicker(forms.SelectMultiple):
    """Boxes of what is picked, and below them a search for more; only what is ticked is sent."""

    template_name = "mcp_bridge/admin/workflow_picker.html"

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        keys = [key for key in value or () if str(key).isdecimal()]
        picked = Workflow.objects.filter(pk__in=keys)
        return {
            "widget": {"name": name, "attrs": attrs or {}},
            "name": name,
            "choices": _choices_of(list(picked.select_related("source").for_lists()), are_picked=True),
            "input_classes": " ".join(BASE_INPUT_CLASSES),
            "checkbox_classes": " ".join(CHECKBOX_CLASSES),
            "choices_template": CHOICES,
        }


def find_choices(text: str) -> dict[str, Any]:
    """The first of those that have all the words in a name, a description, a tag or their source."""
    found = Workflow.objects.present().select_related("source").for_lists()
    for word in text.split()[:10]:
        if "*" in word or "?" in word:
            found = found.named_like(word)
        else:
            found = found.matching(word) | found.tagged(word) | found.filter(source__name__icontains=word)
    total = found.count()
    return {
        "choices": _choices_of(list(found[:MOST_SHOWN]), are_picked=False),
        "name": "picked",
        "checkbox_classes": " ".join(CHECKBOX_CLASSES),
        "total": total,
        "more": max(0, total - MOST_SHOWN),
    }


def _choices_of(workflows: list[Workflow], *, are_picked: bool) -> list[Choice]:
    costs, exposed = tokens_by_key([workflow.pk for workflow in workflows]), confirmed_catalogue().workflows
    return [
        Choice(
            key=workflow.pk,
            name=workflow.tool_name,
            description=Truncator(workflow.shown_description).chars(SHOWN_DESCRIPTION),
            source=workflow.source.name,
            tokens=costs.get(workflow.pk),
            is_exposed=workflow.tool_name in exposed,
            is_picked=are_picked,
        )
        for workflow in workflows
    ]
