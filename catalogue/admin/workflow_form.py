"""What a curator may decide about a workflow, as a form."""

from typing import TYPE_CHECKING, Any

from django import forms

from catalogue.admin.base import CatalogueForm
from catalogue.admin.value_fields import CommasField
from catalogue.curation import OVERRIDABLE
from catalogue.models import Workflow
from catalogue.presentation import CURATORS_HINTS

NO_TAGS = "-"
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

    class Meta:
        model = Workflow
        fields = (*OVERRIDABLE, "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, hint in CURATORS_HINTS.items():
            # Who may only look has no fields.
            if name in self.fields:
                engines = f"the engine's ({TOLD[self.instance.hints.get(hint)]})"
                choices = [("unknown", engines), ("true", "yes"), ("false", "no")]
                self.fields[name].widget.choices = choices
