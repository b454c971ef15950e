"""Form fields for values that Django has no field for."""

import json
from collections.abc import Sequence
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

MONOSPACE = {
    "style": "font-family: ui-monospace, monospace; font-size: 0.8rem",
    "spellcheck": "false",
    "autocomplete": "off",
}


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


class CommasField(forms.CharField):
    """A list of short texts such as tags, separated by commas."""

    widget = UnfoldAdminTextInputWidget

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        parts = value if isinstance(value, list) else str(value or "").split(",")
        return [part.strip() for part in parts if part.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.to_python(initial) != self.to_python(data))


class MultilineField(forms.CharField):
    """A text as it was written; browsers end its lines in a way of their own."""

    widget = UnfoldAdminTextareaWidget

    def to_python(self, value: Any) -> str:
        return "\n".join(str(value or "").splitlines()).rstrip()

    def has_changed(self, initial: Any, data: Any) -> bool:
        return self.to_python(initial) != self.to_python(data)


class PairsField(forms.CharField):
    """Texts by name, one `name=value` a line."""

    widget = UnfoldAdminTextareaWidget

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return "\n".join(f"{name}={text}" for name, text in value.items())

    def to_python(self, value: Any) -> dict[str, str]:  # type: ignore[override]
        if isinstance(value, dict):
            return value
        pairs: dict[str, str] = {}
        for line in filter(None, map(str.strip, str(value or "").splitlines())):
            name, equals, text = (part.strip() for part in line.partition("="))
            if not name or not equals:
                raise forms.ValidationError(f"Each line must look like name=value, unlike {line[:100]!r}.")
            if name in pairs:
                raise forms.ValidationError(f"{name} stands there twice.")
            pairs[name] = text
        return pairs

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return self.to_python(initial) != self.to_python(data)
        except forms.ValidationError:
            return True


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


class ChoiceField(forms.TypedChoiceField):
    """One of some values of any type, which the browser sends back as text."""

    def __init__(self, *, choices: Sequence[tuple[Any, str]], **common: Any) -> None:
        super().__init__(choices=choices, widget=UnfoldAdminSelectWidget(), empty_value=None, **common)
        known = {str(value): value for value, _ in choices}
        self.coerce = lambda text: known[str(text)]


class SecretTextarea(UnfoldAdminTextareaWidget):  # type: ignore[misc]
    """For secrets of several lines; what was typed is never sent back to the browser."""

    def format_value(self, value: Any) -> None:
        return None
