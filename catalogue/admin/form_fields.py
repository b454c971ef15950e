"""Form fields for values, for the settings of connectors and for the arguments of workflows."""

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from django import forms
from django.contrib.auth.models import Group, User
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from pydantic import SecretStr
from unfold import widgets

from access.callers import GROUP, USER
from catalogue.admin.rendering import rendered
from catalogue.approval_rules import read_rules, write_rules
from catalogue.argument_overrides import MAX_DESCRIPTION
from catalogue.connections import Bounds, Setting, plain_type
from catalogue.served_schemas import describe_inputs
from connectors.formats.json import STRICT, is_number
from connectors.formats.json_schema import JSON_TYPES
from connectors.formats.lists import split_list

MONOSPACE = {
    "style": "font-family: ui-monospace, monospace; font-size: 0.8rem",
    "spellcheck": "false",
    "autocomplete": "off",
}


def text_field(
    label: Any, help_text: Any, *, required: bool = False, length: int = 255, offers: str = "", **options: Any
) -> forms.CharField:
    """`offers`: the id of the page's list of suggestions."""
    attrs = {"autocomplete": "off"} | ({"list": offers} if offers else {})
    widget = widgets.UnfoldAdminTextInputWidget(attrs=attrs)
    return forms.CharField(
        label=label, help_text=help_text, required=required, max_length=length, widget=widget, **options
    )


def switch(label: Any, help_text: Any = "", *, initial: bool = False) -> forms.BooleanField:
    widget = widgets.UnfoldBooleanSwitchWidget
    return forms.BooleanField(
        label=label, help_text=help_text, required=False, initial=initial, widget=widget
    )


class ParsedField(forms.CharField):
    """Compares values rather than texts: another notation of the same value is not a change."""

    widget = widgets.UnfoldAdminTextareaWidget

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(initial) != self.to_python(data))
        except forms.ValidationError:
            return True


class LinesField(ParsedField):
    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:  # type: ignore[override]
        lines = value if isinstance(value, list) else str(value or "").splitlines()
        return [line.strip() for line in lines if line.strip()]


class CommasField(ParsedField):
    widget = widgets.UnfoldAdminTextInputWidget

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        return value if isinstance(value, list) else split_list(str(value or ""))


class MultilineField(ParsedField):
    """Text with the browser's line ends normalised."""

    def to_python(self, value: Any) -> str:
        return "\n".join(str(value or "").splitlines()).rstrip()


class PairsField(ParsedField):
    """Texts by name, one `name=value` a line."""

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
                raise forms.ValidationError(
                    f"Each line must have the form name=value; {line[:100]!r} does not."
                )
            if name in pairs:
                raise forms.ValidationError(f"{name} is given twice.")
            pairs[name] = text
        return pairs


class JsonValueField(forms.CharField):
    widget = widgets.UnfoldAdminTextareaWidget

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
    """Values of any type, which the browser returns as text."""

    def __init__(self, *, choices: Sequence[tuple[Any, str]], **common: Any) -> None:
        super().__init__(
            choices=choices, widget=widgets.UnfoldAdminSelectWidget(), empty_value=None, **common
        )
        known = {str(value): value for value, label in choices}
        self.coerce = lambda text: known[str(text)]


class SecretTextarea(widgets.UnfoldAdminTextareaWidget):  # type: ignore[misc]
    """Secrets of several lines; the value is never sent back to the browser."""

    def format_value(self, value: Any) -> None:
        return None


SETTING = "setting_"  # Prefix of these fields' names, so that none clashes with a field of the model
ONLY_IF = "data-only-if"  # The attribute that tells source_form.js when a field matters
SHORT, LONG = 4, 12  # Lines of a text area
# By the kind of value: the field, its widget, and the widget's attributes
FIELDS: dict[str, tuple[type[forms.Field], type[forms.Widget], dict[str, Any]]] = {
    "line": (forms.CharField, widgets.UnfoldAdminTextInputWidget, {}),
    "text": (MultilineField, widgets.UnfoldAdminTextareaWidget, {"rows": LONG, **MONOSPACE}),
    "secret": (forms.CharField, widgets.UnfoldAdminPasswordWidget, {"autocomplete": "new-password"}),
    "secret text": (MultilineField, SecretTextarea, {"rows": SHORT, **MONOSPACE}),
    "switch": (forms.BooleanField, widgets.UnfoldBooleanSwitchWidget, {}),
    "whole number": (forms.IntegerField, widgets.UnfoldAdminIntegerFieldWidget, {}),
    "number": (forms.FloatField, widgets.UnfoldAdminDecimalFieldWidget, {}),
    "lines": (LinesField, widgets.UnfoldAdminTextareaWidget, {"rows": SHORT}),
    "pairs": (PairsField, widgets.UnfoldAdminTextareaWidget, {"rows": SHORT, **MONOSPACE}),
    "json": (JsonValueField, widgets.UnfoldAdminTextareaWidget, {"rows": SHORT, **MONOSPACE}),
}
SYNTAX_HINTS = {
    "lines": gettext_lazy("One per line."),
    "pairs": gettext_lazy("One name=value per line."),
    "json": gettext_lazy("As JSON."),
}


def setting_field(setting: Setting, settings: dict[str, Setting]) -> forms.Field:
    choices = _choices_of(setting)
    shows_default = setting.can_be_empty or setting.type is bool or choices
    common: dict[str, Any] = {
        "label": gettext_lazy(setting.title),  # The history has it in English
        "help_text": _help(setting, settings),
        "required": setting.required and setting.type is not bool,
        "initial": setting.default if shows_default else None,
    }
    if choices:
        decided = common["required"] or common["initial"] is not None
        field: forms.Field = ChoiceField(
            choices=choices if decided else [("", _("(default)")), *choices], **common
        )
    else:
        field_class, widget, attributes = FIELDS[_kind_of(setting)]
        field = field_class(**common, widget=widget(attrs=attributes))
    attrs = field.widget.attrs
    if isinstance(field, forms.IntegerField):
        bounds = {"min": setting.bounds.lowest, "max": setting.bounds.highest}
        attrs |= {name: f"{bound:.15g}" for name, bound in bounds.items() if bound is not None}
    if setting.default not in (None, "") and common["initial"] is None:
        is_number = isinstance(field, forms.IntegerField)
        attrs["placeholder"] = (
            f"{setting.default:.15g}" if is_number else field.prepare_value(setting.default)
        )
    if setting.hints.only_if:
        conditions = {SETTING + name: values for name, values in setting.hints.only_if.items()}
        attrs[ONLY_IF] = json.dumps(conditions)
    return field


def _help(setting: Setting, settings: dict[str, Setting]) -> SafeString:
    syntax = "" if _choices_of(setting) else SYNTAX_HINTS.get(_kind_of(setting), "")
    sentences = [_(setting.help), _within(setting.bounds), syntax]
    conditions = [
        (_(settings[name].title) if name in settings else name, values)
        for name, values in setting.hints.only_if.items()
    ]
    return rendered("parts/setting_help", sentences=[*filter(None, sentences)], conditions=conditions)


def _within(bounds: Bounds) -> str:
    """A sentence; empty without bounds."""
    sentences = {  # By what limits it below and above
        ("from", "to"): _("From %(lowest)s to %(highest)s."),
        ("from", "below"): _("From %(lowest)s below %(highest)s."),
        ("above", "to"): _("Above %(lowest)s to %(highest)s."),
        ("above", "below"): _("Above %(lowest)s below %(highest)s."),
        ("from", ""): _("From %(lowest)s."),
        ("above", ""): _("Above %(lowest)s."),
        ("", "to"): _("Up to %(highest)s."),
        ("", "below"): _("Below %(highest)s."),
        ("", ""): "",
    }
    low = "" if bounds.lowest is None else "above" if bounds.lowest_excluded else "from"
    high = "" if bounds.highest is None else "below" if bounds.highest_excluded else "to"
    shown = {"lowest": bounds.lowest, "highest": bounds.highest}
    return sentences[low, high] % {
        name: f"{bound:,.15g}" for name, bound in shown.items() if bound is not None
    }


def _kind_of(setting: Setting) -> str:
    kind = setting.type
    if kind is SecretStr:
        return "secret text" if setting.hints.multiline else "secret"
    if kind is str:
        return "text" if setting.hints.multiline else "line"
    if kind in (bool, int, float):
        return {bool: "switch", int: "whole number", float: "number"}[kind]
    inner = [plain_type(part) for part in get_args(kind)]
    if get_origin(kind) is list and inner == [str]:
        return "lines"
    if get_origin(kind) is dict and inner == [str, str]:
        return "pairs"
    return "line" if getattr(kind, "__name__", "").endswith("Url") else "json"


def _choices_of(setting: Setting) -> list[tuple[Any, str]]:
    kind = setting.type
    if kind is bool and setting.optional:
        return [(True, _("yes")), (False, _("no"))]
    if get_origin(kind) is Literal:
        return [(value, str(value)) for value in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [(member.value, str(member.value)) for member in kind]
    return []


KINDS = (
    ("", gettext_lazy("Set by agents")),
    ("constant", gettext_lazy("Always this value; hidden from agents")),
    ("default", gettext_lazy("This value if agents omit it")),
)
TEXT = "string"
GONE = "The engine's schema no longer has it. To drop it, choose “Set by agents” and clear the description."


class NotReadable(ValueError):
    """The text is not a value of the type."""


def read_value(text: str, kind: str) -> Any:
    """The value of a text for an argument of this type. Raises NotReadable."""
    kinds = set(kind.split(" or "))
    text = text.replace("\r\n", "\n")
    if kinds == {TEXT}:
        return text
    try:
        value = json.loads(text, **STRICT)
    except ValueError as error:
        if TEXT in kinds or kind == "any":
            return text
        raise NotReadable(f"This is not a JSON value of the type {kind}: {error}") from None
    # Of several types the JSON value comes first: `5` is a text only where numbers are not allowed.
    return text if TEXT in kinds and _type_of(value) not in kinds else value


def write_value(value: Any, kind: str) -> str:
    """A text that reads back as the value."""
    if isinstance(value, str):
        try:
            if read_value(value, kind) == value:
                return value
        except NotReadable:
            pass
    return json.dumps(value, ensure_ascii=False)


def _type_of(value: Any) -> str:
    is_whole = is_number(value) and (isinstance(value, int) or value.is_integer())
    return "integer" if is_whole else JSON_TYPES[type(value)]


class ArgumentsWidget(forms.Widget):
    """A row for each argument: the engine's description, the curator's, and the value's origin."""

    template_name = "catalogue/admin/arguments.html"
    schema: dict[str, Any] = {}
    problems: dict[str, str] = {}

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return f"{name}-rows" not in data

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        """`[{name, description, kind, value}]` as typed; None where the form had no rows."""
        if self.value_omitted_from_data(data, files, name):
            return None
        rows = data.get(f"{name}-rows", "")
        count = int(rows) if rows.isdecimal() else 0
        parts = ("name", "description", "kind", "value")
        return [
            {part: data.get(f"{name}-{number}-{part}", "") for part in parts}
            for number in range(min(count, 1000))
        ]

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        inputs = describe_inputs(self.schema)
        typed = (
            {row["name"]: row for row in value}
            if isinstance(value, list)
            else {one: _row_of(override, inputs.get(one)) for one, override in (value or {}).items()}
        )
        names = [*inputs, *(one for one in typed if one not in inputs)]
        rows = [
            self._row(f"{name}-{number}", one, inputs.get(one), typed.get(one, {}))
            for number, one in enumerate(names)
        ]
        return {"name": name, "rows": rows}

    def _row(
        self, prefix: str, name: str, known: dict[str, Any] | None, typed: dict[str, str]
    ) -> dict[str, Any]:
        description = widgets.UnfoldAdminTextareaWidget(
            attrs={
                "rows": 1,
                "aria-label": f"Description of {name}",
                "placeholder": "Your description. Empty: the engine's",
            }
        )
        kind = widgets.UnfoldAdminSelectWidget(attrs={"aria-label": f"How {name} is set"}, choices=KINDS)
        value = widgets.UnfoldAdminTextInputWidget(
            attrs={"aria-label": f"Value of {name}", "placeholder": "Value", **MONOSPACE}
        )
        return {
            "prefix": prefix,
            "name": name,
            "type": known["type"] if known else "",
            "is_required": bool(known and known["required"]),
            "engines": known["description"] if known else "",
            "default": "" if known is None or known["default"] is None else json.dumps(known["default"]),
            "problem": self.problems.get(name) or ("" if known else GONE),
            "marks": _marks_of(typed),
            "description": description.render(f"{prefix}-description", typed.get("description", "")),
            "kind": kind.render(f"{prefix}-kind", typed.get("kind", "")),
            "value": value.render(f"{prefix}-value", typed.get("value", "")),
        }


def _row_of(override: dict[str, Any], known: dict[str, Any] | None) -> dict[str, str]:
    kind = next((kind for kind in ("constant", "default") if kind in override), "")
    value = write_value(override[kind], known["type"] if known else "any") if kind else ""
    return {"description": override.get("description", ""), "kind": kind, "value": value}


def _marks_of(typed: dict[str, str]) -> list[str]:
    """What a curator decided on an argument, for its closed row."""
    value = typed.get("value", "")
    by_kind = {"constant": [_("always %s") % value], "default": [_("%s if omitted") % value]}
    return by_kind.get(typed.get("kind", ""), []) + ([_("your text")] if typed.get("description") else [])


class ArgumentsField(forms.Field):
    widget = ArgumentsWidget

    def __init__(self, **common: Any) -> None:
        super().__init__(required=False, **common)
        self.stored: dict[str, Any] = {}

    def offer(self, schema: dict[str, Any], stored: dict[str, Any], problems: dict[str, str]) -> None:
        """The schema of the rows, and the value of a form without rows."""
        self.stored = stored
        self.widget.schema, self.widget.problems = schema, problems

    def clean(self, value: Any) -> dict[str, Any]:
        if value is None:
            return self.stored
        if isinstance(value, dict):  # As stored
            return value
        inputs = describe_inputs(self.widget.schema)
        read, problems = {}, {}
        for row in value:
            try:
                if override := self._read_row(row, inputs.get(row["name"])):
                    read[row["name"]] = override
            except NotReadable as problem:
                problems[row["name"]] = str(problem)
        if problems:
            self.show_problems(problems)
            raise forms.ValidationError([f"{name}: {problem}" for name, problem in problems.items()])
        return read

    def show_problems(self, problems: dict[str, str]) -> None:
        """In their rows, by the name of the argument."""
        self.widget.problems = self.widget.problems | problems

    def _read_row(self, row: dict[str, str], known: dict[str, Any] | None) -> dict[str, Any]:
        override: dict[str, Any] = {}
        if description := row["description"].replace("\r\n", "\n").strip():
            override["description"] = description[: MAX_DESCRIPTION + 1]
        kind = row["kind"]
        if not kind and row["value"].strip():
            raise NotReadable("choose when the value applies: always, or if agents omit the argument.")
        if kind in ("constant", "default"):
            type_name = known["type"] if known else "any"
            if not row["value"] and type_name != TEXT:
                raise NotReadable("enter the value.")
            override[kind] = read_value(row["value"], type_name)
        return override

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return json.dumps(self.clean(data), sort_keys=True) != json.dumps(initial or {}, sort_keys=True)
        except forms.ValidationError:
            return True


class _ReservedWidget(widgets.UnfoldAdminSelect2MultipleWidget):  # type: ignore[misc]
    choices: Any

    def optgroups(self, name: str, value: Any, attrs: Any = None) -> Any:
        """Includes names of deleted users and groups, because a save without them could open the object."""
        known = {key for _, options in self.choices for key, _ in options}
        if gone := [(one, f"{one} (deleted)") for one in value if one and one not in known]:
            self.choices = [*self.choices, (_("Deleted"), gone)]
        return super().optgroups(name, value, attrs)


class ReservedForField(forms.MultipleChoiceField):
    """Users and groups; the model checks that they exist."""

    widget = _ReservedWidget

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=_users_and_groups, required=False, **options)

    def valid_value(self, value: str) -> bool:
        return True


def _users_and_groups() -> list[tuple[str, list[tuple[str, str]]]]:
    groups = Group.objects.order_by("name").values_list("name", flat=True)
    users = User.objects.filter(is_active=True).order_by("username").values_list("username", flat=True)
    return [
        (_("Groups"), [(f"{GROUP}{name}", name) for name in groups]),
        (_("Users"), [(f"{USER}{name}", name) for name in users]),
    ]


class ApprovalRulesField(ParsedField):
    """A line for each rule, such as `/amount over 1000`."""

    def prepare_value(self, value: Any) -> Any:
        return write_rules(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[dict[str, Any]]:  # type: ignore[override]
        if isinstance(value, list):
            return value
        try:
            return read_rules(str(value or ""))
        except ValueError as problem:
            raise forms.ValidationError(str(problem)) from None
