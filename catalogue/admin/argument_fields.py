"""Arguments in forms: the curator's changes to each of them, and values that people write as text."""

import json
from typing import Any

from django import forms
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from catalogue.admin.value_fields import MONOSPACE
from catalogue.argument_overrides import LONGEST_DESCRIPTION
from catalogue.inputs import describe_inputs

KINDS = (
    ("", "Agents give it"),
    ("constant", "Always this value, hidden from agents"),
    ("default", "This value where agents leave it out"),
)
TEXT = "string"
GONE = "The engine's schema no longer names it; choose “Agents give it” and empty the description to drop it."


class NotReadable(ValueError):
    """The text is no value of the type."""


def read_value(text: str, kind: str) -> Any:
    """What a text stands for, of an argument of this type in words. Raises NotReadable."""
    kinds = set(kind.split(" or "))
    text = text.replace("\r\n", "\n")
    if kinds == {TEXT}:
        return text
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        if TEXT in kinds or kind == "any":
            return text
        raise NotReadable(f"This is no JSON value of the type {kind}: {error}") from None
    # What a text may be, and something else too: `5` is a text only where numbers are none.
    return text if TEXT in kinds and _type_of(value) not in kinds else value


def write_value(value: Any, kind: str) -> str:
    """The text that is read back as the value."""
    if isinstance(value, str):
        try:
            if read_value(value, kind) == value:
                return value
        except NotReadable:
            pass
    return json.dumps(value, ensure_ascii=False)


def _refuse(constant: str) -> Any:
    raise ValueError(f"there is no {constant}")


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if float(value).is_integer() else "number"
    if isinstance(value, str):
        return TEXT
    return "array" if isinstance(value, list) else "object"


class ArgumentsWidget(forms.Widget):
    """A row for each argument: the engine's words beside ours, and who gives its value."""

    schema: dict[str, Any] = {}
    problems: dict[str, str] = {}

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return f"{name}-rows" not in data

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        """`[{name, description, kind, value}]` as it was typed; None where the form had no rows."""
        if self.value_omitted_from_data(data, files, name):
            return None
        rows = data.get(f"{name}-rows", "")
        count = int(rows) if rows.isdecimal() else 0
        parts = ("name", "description", "kind", "value")
        return [
            {part: data.get(f"{name}-{number}-{part}", "") for part in parts}
            for number in range(min(count, 1000))
        ]

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        inputs = describe_inputs(self.schema)
        typed = (
            {row["name"]: row for row in value}
            if isinstance(value, list)
            else self._rows_of(value or {}, inputs)
        )
        names = [*inputs, *(one for one in typed if one not in inputs)]
        rows = [
            self._row(f"{name}-{number}", one, inputs.get(one), typed.get(one, {}))
            for number, one in enumerate(names)
        ]
        return render_to_string("catalogue/admin/arguments.html", {"name": name, "rows": rows})

    def _rows_of(self, overrides: dict[str, Any], inputs: dict[str, Any]) -> dict[str, dict[str, str]]:
        return {name: _row_of(override, inputs.get(name)) for name, override in overrides.items()}

    def _row(
        self, prefix: str, name: str, told: dict[str, Any] | None, typed: dict[str, str]
    ) -> dict[str, Any]:
        description = UnfoldAdminTextareaWidget(
            attrs={
                "rows": 1,
                "aria-label": f"Our description of {name}",
                "placeholder": "Our description; empty: the engine's",
            }
        )
        kind = UnfoldAdminSelectWidget(attrs={"aria-label": f"Who gives {name}"}, choices=KINDS)
        value = UnfoldAdminTextInputWidget(
            attrs={"aria-label": f"Value of {name}", "placeholder": "Value", **MONOSPACE}
        )
        return {
            "prefix": prefix,
            "name": name,
            "type": told["type"] if told else "",
            "is_required": bool(told and told["required"]),
            "engines": told["description"] if told else "",
            "default": "" if told is None or told["default"] is None else json.dumps(told["default"]),
            "problem": self.problems.get(name) or ("" if told else GONE),
            "description": description.render(f"{prefix}-description", typed.get("description", "")),
            "kind": kind.render(f"{prefix}-kind", typed.get("kind", "")),
            "value": value.render(f"{prefix}-value", typed.get("value", "")),
        }


def _row_of(override: dict[str, Any], told: dict[str, Any] | None) -> dict[str, str]:
    kind = next((kind for kind in ("constant", "default") if kind in override), "")
    value = write_value(override[kind], told["type"] if told else "any") if kind else ""
    return {"description": override.get("description", ""), "kind": kind, "value": value}


class ArgumentsField(forms.Field):
    """The column `argument_overrides`, without JSON."""

    widget = ArgumentsWidget

    def __init__(self, **common: Any) -> None:
        super().__init__(required=False, **common)
        self.stored: dict[str, Any] = {}

    def offer(self, schema: dict[str, Any], stored: dict[str, Any], problems: dict[str, str]) -> None:
        """What the rows are about; what a form without rows leaves as it is."""
        self.stored = stored
        self.widget.schema, self.widget.problems = schema, problems

    def clean(self, value: Any) -> dict[str, Any]:
        if value is None:
            return self.stored
        inputs = describe_inputs(self.widget.schema)
        read, problems = {}, []
        for row in value:
            try:
                if override := self._read_row(row, inputs.get(row["name"])):
                    read[row["name"]] = override
            except NotReadable as problem:
                problems.append(f"{row['name']}: {problem}")
        if problems:
            raise forms.ValidationError(problems)
        return read

    def _read_row(self, row: dict[str, str], told: dict[str, Any] | None) -> dict[str, Any]:
        override: dict[str, Any] = {}
        if description := row["description"].replace("\r\n", "\n").strip():
            override["description"] = description[: LONGEST_DESCRIPTION + 1]
        kind = row["kind"]
        if not kind and row["value"].strip():
            raise NotReadable("say when the value counts: always, or where agents leave it out.")
        if kind in ("constant", "default"):
            type_told = told["type"] if told else "any"
            if not row["value"] and type_told != TEXT:
                raise NotReadable("give the value.")
            override[kind] = read_value(row["value"], type_told)
        return override

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return json.dumps(self.clean(data), sort_keys=True) != json.dumps(initial or {}, sort_keys=True)
        except forms.ValidationError:
            return True
