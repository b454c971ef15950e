"""A field to pick workflows with: a search on the server finds them, and the page shows the first."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold import widgets

from catalogue.models import Workflow

MAX_SHOWN = 50
SEARCH = "find_workflows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    workflow: Workflow
    key: Any
    tokens: int | None = None  # None if they are unknown, or of no interest
    is_exposed: bool = True


class WorkflowPicker(forms.SelectMultiple):
    template_name = "catalogue/admin/workflow_picker.html"
    field: ClassVar[str]
    view: ClassVar[str]  # The address that answers with `show_found`
    most = 0  # How many may be picked; 0: any number

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("catalogue/admin/workflow_picker.css",)}
        js = ("catalogue/admin/workflow_picker.js",)

    def find(self, text: str) -> tuple[Iterable[Workflow], int]:
        """The first MAX_SHOWN workflows that a search finds, and how many it finds. May raise
        ValidationError."""
        raise NotImplementedError

    def find_picked(self, values: Iterable[Any]) -> Iterable[Workflow]:
        raise NotImplementedError

    def choices_of(self, workflows: Iterable[Workflow]) -> list[Choice]:
        raise NotImplementedError

    def show_found(self, request: HttpRequest) -> HttpResponse:
        found = self._describe_found(request.GET.get(SEARCH, ""))
        return TemplateResponse(request, "catalogue/admin/workflow_choices.html", found)

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        return self._describe_found("") | {
            "widget": {"name": name, "attrs": attrs or {}},
            "picked": self.choices_of(self.find_picked(value or ())),
            "view": self.view,
            "most": self.most,
            "input_classes": " ".join(widgets.BASE_INPUT_CLASSES),
        }

    def _describe_found(self, text: str) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "name": self.field,
            "checkbox_classes": " ".join(widgets.CHECKBOX_CLASSES),
        }
        try:
            found, total = self.find(text)
        except ValidationError as problem:
            return shown | {"problems": problem.messages}
        return shown | {"choices": self.choices_of(found), "total": total, "more": max(0, total - MAX_SHOWN)}
