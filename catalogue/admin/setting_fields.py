"""A connector's pydantic settings as form fields.

Pydantic has the last word on every value; the form only has to ask for it in the right way.
"""

import json
from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from django import forms
from django.utils.html import escape
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldAdminURLInputWidget,
    UnfoldBooleanSwitchWidget,
)


class LinesField(forms.CharField):
    """A list of texts, one a line."""

    widget = UnfoldAdminTextareaWidget

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:  # type: ignore[override]
        lines = value if isinstance(value, list) else str(value or "").splitlines()
        return [line.strip() for line in lines if line.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return self.to_python(initial) != self.to_python(data)


class JsonValueField(forms.CharField):
    """Whatever has no field of its own is asked for as JSON."""

    widget = UnfoldAdminTextareaWidget

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else json.dumps(value, indent=2)

    def to_python(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else None
        except ValueError as error:
            raise forms.ValidationError(f"Not valid JSON: {error}") from None


def setting_field(name: str, info: FieldInfo) -> forms.Field:
    """The form field for one setting."""
    annotation = _plain(info.annotation)
    common = {
        "label": info.title or name.replace("_", " ").capitalize(),
        "help_text": escape(info.description or ""),
        "required": info.is_required() and annotation is not bool,
        "initial": None if is_secret(info) else default_of(info),
    }
    return _maker(annotation)(common)


def is_secret(info: FieldInfo) -> bool:
    return _plain(info.annotation) is SecretStr


def default_of(info: FieldInfo) -> Any:
    """As JSON has it; None where there is none."""
    default = info.get_default(call_default_factory=True, validated_data={})
    return None if default is PydanticUndefined else to_jsonable_python(default)


def _plain(annotation: Any) -> Any:
    """The type that is meant by `Annotated[X, ...]` and `X | None`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [part for part in get_args(annotation) if part is not NoneType]
        return _plain(others[0]) if len(others) == 1 else annotation
    return annotation


Maker = Callable[[dict[str, Any]], forms.Field]


def _maker(annotation: Any) -> Maker:
    if annotation in PLAIN_MAKERS:
        return PLAIN_MAKERS[annotation]
    if get_origin(annotation) is Literal:
        return _choices([(value, str(value)) for value in get_args(annotation)])
    if get_origin(annotation) is list and _plain(get_args(annotation)[0]) is str:
        return lambda common: LinesField(**_with_hint(common, "One a line."), widget=_short_textarea())
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choices([(member.value, str(member.value)) for member in annotation])
    if getattr(annotation, "__name__", "").endswith("Url"):
        return lambda common: forms.CharField(**common, widget=UnfoldAdminURLInputWidget())
    return lambda common: JsonValueField(**_with_hint(common, "As JSON."), widget=_short_textarea())


def _choices(choices: list[tuple[Any, str]]) -> Maker:
    def make(common: dict[str, Any]) -> forms.Field:
        shown = (
            choices
            if common["required"] or common["initial"] is not None
            else [("", DEFAULT_CHOICE), *choices]
        )
        field = forms.TypedChoiceField(
            **common, choices=shown, widget=UnfoldAdminSelectWidget(), empty_value=None
        )
        known = {str(value): value for value, _ in choices}
        field.coerce = lambda text: known[str(text)]
        return field

    return make


def _short_textarea() -> forms.Widget:
    widget: forms.Widget = UnfoldAdminTextareaWidget(attrs={"rows": 4})
    return widget


def _with_hint(common: dict[str, Any], hint: str) -> dict[str, Any]:
    return common | {"help_text": f"{common['help_text']} {hint}".strip()}


def _password(common: dict[str, Any]) -> forms.Field:
    widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}, render_value=False)
    return forms.CharField(**common, widget=widget)


DEFAULT_CHOICE = "(default)"
PLAIN_MAKERS: dict[Any, Maker] = {
    str: lambda common: forms.CharField(**common, widget=UnfoldAdminTextInputWidget()),
    bool: lambda common: forms.BooleanField(**common, widget=UnfoldBooleanSwitchWidget()),
    int: lambda common: forms.IntegerField(**common, widget=UnfoldAdminIntegerFieldWidget()),
    float: lambda common: forms.FloatField(**common, widget=UnfoldAdminDecimalFieldWidget()),
    SecretStr: _password,
}
