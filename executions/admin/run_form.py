"""The form that runs a workflow: a field for each argument of its schema, or all of them as JSON."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalogue.admin.argument_fields import NotReadable, read_value, write_value
from catalogue.admin.value_fields import MONOSPACE
from catalogue.inputs import Input, Inputs, inputs_at
from catalogue.models import Workflow
from catalogue.schema_words import Place
from connectors.formats.json import UnreadableJSON, parse_json

PREFIX = "argument"
SCALARS = {"string", "integer", "number", "boolean"}
SHORT = 100
"""Texts that may be no longer have one line."""
MOST_CHOICES = 200


class ArgumentField(forms.CharField):
    """A value written as text; empty: left out. The schema has the last word on what is written."""

    def __init__(self, name: str, kind: str, *, about: str, **common: Any) -> None:
        super().__init__(label=name, required=False, strip=False, **common)
        self.kind = kind
        self.about = about

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, Typed) else write_value(value, self.kind)

    def bound_data(self, data: Any, initial: Any) -> Any:
        return None if data is None else Typed(data)

    def clean(self, value: Any) -> Any:
        """None: left out, unlike null, which is written as such."""
        if not value:
            return None
        try:
            return Given(self.read(str(value)))
        except NotReadable as problem:
            raise forms.ValidationError(str(problem)) from None

    def read(self, text: str) -> Any:
        """Raises NotReadable."""
        return read_value(text, self.kind)


class Typed(str):
    """What somebody typed, which is shown again as it is."""


class Given:
    """A value that somebody gave, which may be null."""

    def __init__(self, value: Any) -> None:
        self.value = value


class OneOfField(ArgumentField):
    """One of the values that the schema counts up; the browser sends them as JSON."""

    def __init__(self, name: str, kind: str, *, values: Iterable[Any], **common: Any) -> None:
        choices = [("", "(left out)"), *((json.dumps(value), _shown(value)) for value in values)]
        super().__init__(name, kind, widget=UnfoldAdminSelectWidget(choices=choices), **common)

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, Typed) else json.dumps(value)

    def read(self, text: str) -> Any:
        return read_value(text, "any")


class ListField(ArgumentField):
    """Scalars, one a line; a list that lines cannot tell is written as JSON."""

    def __init__(self, name: str, *, item: str, **common: Any) -> None:
        super().__init__(name, "array", **common)
        self.item = item

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, Typed):
            return value
        if isinstance(value, list):
            lines = [write_value(one, self.item) for one in value]
            if lines and all(line.strip() and "\n" not in line for line in lines) and lines[0][0] != "[":
                return "\n".join(lines)
        return json.dumps(value, ensure_ascii=False)

    def read(self, text: str) -> Any:
        if text.lstrip().startswith("["):
            return read_value(text, "array")
        return [read_value(line.strip(), self.item) for line in text.splitlines() if line.strip()]


class MomentField(ArgumentField):
    """A moment in the time zone of the product, which the schema wants with its offset."""

    def prepare_value(self, value: Any) -> Any:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            return value
        local = timezone.localtime(moment) if moment.tzinfo and not isinstance(value, Typed) else moment
        return local.replace(tzinfo=None).isoformat(timespec="seconds")

    def read(self, text: str) -> Any:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise NotReadable("This is no date and time.") from None
        return (moment if moment.tzinfo else timezone.make_aware(moment)).isoformat()


class RunForm(forms.Form):
    """What to run a workflow with. `mode` says whether its fields or the JSON text count."""

    key = forms.UUIDField(widget=forms.HiddenInput)
    """Of this filling in: sent twice, it runs once."""
    mode = forms.ChoiceField(choices=[("form", "Form"), ("json", "JSON")], widget=forms.HiddenInput)
    json = forms.CharField(
        label="Arguments, as a JSON object",
        required=False,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 12, **MONOSPACE}),
    )
    fresh = forms.BooleanField(
        label="Run it though a cached result could answer", required=False, widget=UnfoldBooleanSwitchWidget
    )
    sure = forms.BooleanField(
        label="Run it: it may delete or overwrite something", required=False, widget=UnfoldBooleanSwitchWidget
    )

    def __init__(self, workflow: Workflow, data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.inputs = inputs_at(Place(schema := workflow.offered_input_schema, schema))
        self.names = in_order(schema, self.inputs)
        self.is_destructive = workflow.effective_hints.get("destructiveHint") is True
        if workflow.effective_cache_seconds is None:
            del self.fields["fresh"]
        if not self.is_destructive:
            del self.fields["sure"]
        for number, name in enumerate(self.names):
            self.fields[f"{PREFIX}-{number}"] = field_for(name, self.inputs)

    @property
    def argument_fields(self) -> list[forms.BoundField]:
        return [self[f"{PREFIX}-{number}"] for number in range(len(self.names))]

    @property
    def own_fields(self) -> list[forms.BoundField]:
        """Besides the arguments: what somebody ticks."""
        return [self[name] for name in ("fresh", "sure") if name in self.fields]

    @property
    def arguments(self) -> dict[str, Any]:
        """As far as they could be read."""
        if self.cleaned_data.get("mode") == "json":
            return self.cleaned_data.get("json") or {}
        given = (
            (name, self.cleaned_data.get(f"{PREFIX}-{number}")) for number, name in enumerate(self.names)
        )
        return {name: value.value for name, value in given if value is not None}

    def full_clean(self) -> None:
        super().full_clean()
        if not self.is_bound or self.cleaned_data.get("mode") != "json":
            return
        # What stands in the fields that are not shown does not count.
        for number in range(len(self.names)):
            self.errors.pop(f"{PREFIX}-{number}", None)

    def clean_json(self) -> dict[str, Any] | None:
        written = self.cleaned_data["json"]
        if self.data.get("mode") != "json":
            return None
        try:
            arguments = parse_json(written.encode(errors="replace")) if written.strip() else {}
        except UnreadableJSON as error:
            raise forms.ValidationError(f"This cannot be read. {error}") from None
        if not isinstance(arguments, dict):
            raise forms.ValidationError('This has to be a JSON object, such as {"text": "Hello"}.')
        return arguments

    def demand_certainty(self) -> None:
        if self.is_destructive and not self.cleaned_data.get("sure"):
            self.add_error("sure", "It may delete or overwrite something: say that it shall.")

    def blame(self, path: str, message: str) -> None:
        """Show a problem with the arguments where it can be mended."""
        name = path.lstrip("/").split("/")[0].replace("~1", "/").replace("~0", "~")
        if self.cleaned_data.get("mode") == "form" and name in self.names:
            inner = path.removeprefix("/").partition("/")[2]
            self.add_error(f"{PREFIX}-{self.names.index(name)}", f"{inner}: {message}" if inner else message)
        else:
            self.add_error(None, f"{path}: {message}" if path else message)


def initial_values(workflow: Workflow, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the form begins with; as JSON where it has no fields for some argument."""
    schema = workflow.offered_input_schema
    inputs = inputs_at(Place(schema, schema))
    names = in_order(schema, inputs)
    mode = "form" if names and arguments.keys() <= set(names) else "json"
    fields = {f"{PREFIX}-{number}": arguments.get(name) for number, name in enumerate(names)}
    return fields | {"mode": mode, "json": json.dumps(dict(arguments), indent=2, ensure_ascii=False)}


def in_order(schema: Mapping[str, Any], inputs: Inputs) -> list[str]:
    """What has to be given first, otherwise as the engine has it."""
    properties = schema.get("properties")
    order = {name: number for number, name in enumerate(properties if isinstance(properties, dict) else ())}
    return sorted(
        inputs.properties, key=lambda name: (name not in inputs.required, order.get(name, len(order)))
    )


def field_for(name: str, inputs: Inputs) -> ArgumentField:
    told = inputs.properties[name]
    is_required = name in inputs.required
    left_out = ""
    if told.default is not None:
        left_out = f"Left out, it is {json.dumps(told.default, ensure_ascii=False)[:SHORT]}."
    common: dict[str, Any] = {
        "about": f"{told.type}, required" if is_required else told.type,
        "help_text": " ".join(filter(None, (told.description, left_out))),
    }
    schema = _resolved(told)
    if values := _values(schema):
        return OneOfField(name, told.type, values=values, **common)
    if item := _item_type(told):
        common["help_text"] += " One a line."
        return ListField(name, item=item, widget=_area(3), **common)
    if told.type in ("integer", "number"):
        step = "1" if told.type == "integer" else "any"
        return ArgumentField(name, told.type, widget=_line(type="number", step=step), **common)
    if told.type == "string":
        return _text_field(name, schema, common)
    if told.type != "any":
        common["help_text"] += " As JSON."
    return ArgumentField(name, told.type, widget=_area(3, **MONOSPACE), **common)


def _text_field(name: str, schema: Mapping[str, Any], common: dict[str, Any]) -> ArgumentField:
    if schema.get("format") == "date":
        return ArgumentField(name, "string", widget=_line(type="date"), **common)
    if schema.get("format") == "date-time":
        common["help_text"] += f" In the time zone {timezone.get_current_timezone_name()}."
        return MomentField(name, "string", widget=_line(type="datetime-local", step="1"), **common)
    longest = schema.get("maxLength")
    is_short = isinstance(longest, int) and longest <= SHORT
    has_one_line = is_short or "format" in schema or "pattern" in schema
    return ArgumentField(name, "string", widget=_line() if has_one_line else _area(2), **common)


def _resolved(told: Input) -> dict[str, Any]:
    """The schema with what it refers to; its own words count first."""
    whole: dict[str, Any] = {}
    for schema in told.place.chain():
        whole = schema | whole
    return whole


def _values(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MOST_CHOICES:
        return values
    if "const" in schema:
        return [schema["const"]]
    return [True, False] if schema.get("type") == "boolean" else []


def _item_type(told: Input) -> str:
    """Of an array of scalars."""
    items = _resolved(told).get("items")
    if told.type != "array" or not isinstance(items, dict):
        return ""
    kind = next((one.get("type") for one in told.place.at(items).chain() if "type" in one), "")
    return str(kind) if isinstance(kind, str) and kind in SCALARS else ""


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(**attrs: str) -> forms.Widget:
    # A number that the schema may refuse is for it to refuse, not for the browser to leave out.
    widget: forms.TextInput = UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", **attrs})
    widget.input_type = attrs.get("type", "text")
    return widget


def _area(rows: int, **attrs: str) -> forms.Widget:
    area: forms.Widget = UnfoldAdminTextareaWidget(attrs={"rows": rows, **attrs})
    return area
