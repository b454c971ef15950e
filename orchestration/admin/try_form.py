"""The form of the try-it page."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.text import Truncator
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from catalogue.exposure import current_catalogue
from executions.callers import Caller
from orchestration.asked import LONGEST_FORMAT_INSTRUCTIONS, LONGEST_INSTRUCTIONS, MOST_TOOLS, Asked
from orchestration.models import WorkflowRequest

SHOWN_DESCRIPTION = 140


class SendForm(forms.Form):
    """The button below a dry run."""

    id = forms.UUIDField(widget=forms.HiddenInput)
    """The new request's."""


class ToolNames(forms.MultipleChoiceField):
    """Names as they come: whether there are such tools is the first thing that a request finds out."""

    def valid_value(self, value: Any) -> bool:
        return True


class TryForm(forms.Form):
    id = forms.UUIDField(widget=forms.HiddenInput)
    instructions = forms.CharField(
        label="Instructions",
        max_length=LONGEST_INSTRUCTIONS,
        help_text="What you want, in your own words.",
        error_messages={"required": "Say what you want."},
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 5}),
    )
    tools = ToolNames(error_messages={"required": "Pick the tools that may be used: one at least."})
    format_response = forms.BooleanField(
        label="Answer in words",
        required=False,
        help_text="The model reads the tool's answer and tells what is in it.",
        widget=UnfoldBooleanSwitchWidget,
    )
    format_instructions = forms.CharField(
        label="How to put the answer",
        max_length=LONGEST_FORMAT_INSTRUCTIONS,
        required=False,
        help_text="Such as: two sentences, for a customer. Only for an answer in words.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
    )

    def clean_tools(self) -> list[str]:
        tools: list[str] = self.cleaned_data["tools"]
        if len(tools) > MOST_TOOLS:
            raise forms.ValidationError(f"Pick at most {MOST_TOOLS} tools; {len(tools)} are picked.")
        return tools

    def asked(self, *, dry_run: bool, caller: Caller) -> Asked:
        """Of a form that is valid."""
        given = self.cleaned_data
        return Asked(
            id=given["id"],
            user_instructions=given["instructions"],
            tool_ids=given["tools"],
            format_response=given["format_response"],
            response_format_instructions=given["format_instructions"],
            dry_run=dry_run,
            caller=caller,
        )

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problems in self.errors.values() for problem in problems]

    @property
    def picked(self) -> set[str]:
        return set(self["tools"].value() or ())


def blank_form(known: WorkflowRequest | None) -> TryForm:
    """Filled in as a request that there is already, if there is one; with an id of its own at any rate."""
    initial: dict[str, Any] = {"id": uuid.uuid4()}
    if known is not None:
        initial |= {
            "instructions": known.instructions,
            "tools": known.tool_ids,
            "format_response": known.format_response,
            "format_instructions": known.format_instructions,
        }
    return TryForm(initial=initial)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChoice:
    """A tool to pick, with the words by which it is found."""

    name: str
    description: str
    words: str
    """Found by, though not shown."""
    is_picked: bool


def tool_choices(picked: Iterable[str]) -> list[ToolChoice]:
    """Every exposed tool, those that are picked first."""
    chosen = set(picked)
    choices = [
        ToolChoice(
            name=workflow.tool_name,
            description=Truncator(workflow.shown_description).chars(SHOWN_DESCRIPTION),
            words=" ".join([workflow.source.name, *workflow.shown_tags]),
            is_picked=workflow.tool_name in chosen,
        )
        for workflow in current_catalogue().workflows.values()
    ]
    return sorted(choices, key=lambda choice: not choice.is_picked)
