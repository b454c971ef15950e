"""What a curator may decide about a workflow, as a form."""

from typing import TYPE_CHECKING, Any

from django import forms
from unfold.widgets import UnfoldAdminTextInputWidget

from catalogue.admin.base import CatalogueForm
from catalogue.curation import OVERRIDABLE
from catalogue.models import Workflow
from catalogue.presentation import CURATORS_HINTS

NO_TAGS = "-"
TOLD = {True: "yes", False: "no", None: "unknown"}


class TagsField(forms.CharField):
    """`a, b`; empty for the engine's own, a hyphen for none."""

    widget = UnfoldAdminTextInputWidget

    def prepare_value(self, value: Any) -> Any:
        return (", ".join(value) or NO_TAGS) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str] | None:  # type: ignore[override]
        tags = [tag.strip() for tag in str(value or "").split(",") if tag.strip()]
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
