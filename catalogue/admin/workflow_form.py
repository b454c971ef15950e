"""What a curator may decide about a workflow, as a form."""

from typing import TYPE_CHECKING, Any

from django import forms
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from catalogue.admin.argument_fields import ArgumentsField
from catalogue.admin.base import CatalogueForm
from catalogue.admin.value_fields import CommasField
from catalogue.argument_overrides import check_form, find_override_problems
from catalogue.curation import MOST_ALIAS_DAYS, OVERRIDABLE
from catalogue.models import Workflow
from catalogue.presentation import CURATORS_HINTS

NO_TAGS, SEEN = "-", "seen"
USUAL_ALIAS_DAYS = 30
TOLD = {True: "yes", False: "no", None: "unknown"}


class TagsField(CommasField):
    """Empty for the engine's own, a hyphen for none."""

    def prepare_value(self, value: Any) -> Any:
        return NO_TAGS if value == [] else super().prepare_value(value)

    def to_python(self, value: Any) -> list[str] | None:  # type: ignore[override]
        tags: list[str] = super().to_python(value)
        return [] if tags == [NO_TAGS] else tags or None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(initial != self.to_python(data))


if TYPE_CHECKING:
    WorkflowModelForm = CatalogueForm
else:
    WorkflowModelForm = forms.ModelForm


class WorkflowForm(WorkflowModelForm):
    tags_override = TagsField(
        label="Tags",
        required=False,
        help_text="Separated by commas. Empty: the engine's tags; a hyphen: none.",
    )

    argument_overrides = ArgumentsField(
        label="Arguments",
        help_text="Values are no place for secrets: records of runs show them. A text stands as it is, all "
        "else as JSON.",
    )
    alias_days = forms.IntegerField(
        label="Days for which the old name works",
        min_value=0,
        max_value=MOST_ALIAS_DAYS,
        required=False,
        initial=USUAL_ALIAS_DAYS,
        help_text="Calls by it then run and are told the new one, and no other workflow can have it. "
        "Afterwards, or with 0, they are refused with the new one.",
        widget=UnfoldAdminIntegerFieldWidget,
    )

    seen = forms.CharField(required=False, widget=forms.HiddenInput)
    """The content hash of what the page shows, for whoever enables it."""

    class Meta:
        model = Workflow
        fields = (*OVERRIDABLE, "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if SEEN in self.fields:
            self.initial[SEEN] = self.instance.content_hash
        if isinstance(arguments := self.fields.get("argument_overrides"), ArgumentsField):
            row = self.instance
            arguments.offer(row.input_schema, row.argument_overrides, row.argument_problems)
        for name, hint in CURATORS_HINTS.items():
            # Who may only look has no fields.
            if name in self.fields:
                engines = f"the engine's ({TOLD[self.instance.hints.get(hint)]})"
                choices = [("unknown", engines), ("true", "yes"), ("false", "no")]
                self.fields[name].widget.choices = choices

    def clean_argument_overrides(self) -> dict[str, Any]:
        overrides: dict[str, Any] = self.cleaned_data["argument_overrides"]
        if overrides != self.instance.argument_overrides and not check_form(overrides):
            problems = find_override_problems(self.instance.input_schema, overrides)
            if problems:
                raise forms.ValidationError([f"{name}: {problem}" for name, problem in problems.items()])
        return overrides
