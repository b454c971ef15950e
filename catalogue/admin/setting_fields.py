"""A connector's pydantic settings as form fields.

Pydantic has the last word on every value; the form only has to ask for it in the right way.
"""

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from django import forms
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from pydantic import SecretStr
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from catalogue.admin.value_fields import (
    MONOSPACE,
    ChoiceField,
    JsonValueField,
    LinesField,
    MultilineField,
    PairsField,
    SecretTextarea,
)
from catalogue.engine_settings import Setting, plain_type

SETTING = "setting_"
"""What the names of these fields begin with, so that none clashes with a field of ours."""
ONLY_IF = "data-only-if"
"""The attribute that tells source_form.js when a field matters."""
SHORT, LONG = 4, 12
"""Lines of a text area."""
YES_NO = [(True, "yes"), (False, "no")]

Maker = Callable[[Setting, dict[str, Any]], forms.Field]


def setting_field(setting: Setting, settings: dict[str, Setting]) -> forms.Field:
    """The form field for one of the settings."""
    maker = _maker(setting)
    common = {
        "label": setting.title,
        "help_text": _help(setting, settings),
        "required": setting.required and setting.type is not bool,
        "initial": setting.default if _is_shown_as_chosen(setting) else None,
    }
    field = maker(setting, common)
    if setting.default not in (None, "") and common["initial"] is None:
        field.widget.attrs["placeholder"] = _as_text(setting.default)
    if setting.hints.only_if:
        conditions = {SETTING + name: values for name, values in setting.hints.only_if.items()}
        field.widget.attrs[ONLY_IF] = json.dumps(conditions)
    return field


def _is_shown_as_chosen(setting: Setting) -> bool:
    """The default stands in the field itself, not as its placeholder."""
    return setting.can_be_empty or setting.type is bool or bool(_choices_of(setting.type))


def _as_text(default: Any) -> str:
    if isinstance(default, bool | str):
        return str(default)
    if isinstance(default, int | float):
        return f"{default:.15g}"
    if isinstance(default, list) and all(isinstance(item, str) for item in default):
        return "\n".join(default)
    if isinstance(default, dict) and all(isinstance(item, str) for item in default.values()):
        return "\n".join(f"{name}={text}" for name, text in default.items())
    return json.dumps(default, indent=2)


def _help(setting: Setting, settings: dict[str, Setting]) -> SafeString:
    """The connector's own words, escaped, and what the form can add to them."""
    sentences = [setting.help, _bounds(setting), WAYS_OF_WRITING.get(_way_of_asking(setting), "")]
    for name, values in setting.hints.only_if.items():
        title = settings[name].title if name in settings else name
        condition = f"Only where {title} is {' or '.join(values)}."
        sentences.append(format_html("<span data-condition>{}</span>", condition))
    return format_html_join(" ", "{}", [(said,) for said in sentences if said])


def _bounds(setting: Setting) -> str:
    told = str(setting.bounds)
    return f"{told[0].upper()}{told[1:]}." if told else ""


def _way_of_asking(setting: Setting) -> str:
    """Which of MAKERS asks for it."""
    kind = setting.type
    if kind is SecretStr:
        return "secret text" if setting.hints.multiline else "secret"
    if kind is bool:
        return "yes, no or neither" if setting.optional else "switch"
    if kind is str:
        return "text" if setting.hints.multiline else "line"
    if kind in (int, float):
        return "whole number" if kind is int else "number"
    if _choices_of(kind):
        return "choice"
    return _way_of_asking_for_several(kind)


def _way_of_asking_for_several(kind: Any) -> str:
    inner = [plain_type(part) for part in get_args(kind)]
    if get_origin(kind) is list and inner == [str]:
        return "lines"
    if get_origin(kind) is dict and inner == [str, str]:
        return "pairs"
    return "line" if getattr(kind, "__name__", "").endswith("Url") else "json"


def _choices_of(kind: Any) -> list[tuple[Any, str]]:
    if get_origin(kind) is Literal:
        return [(value, str(value)) for value in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [(member.value, str(member.value)) for member in kind]
    return []


def _maker(setting: Setting) -> Maker:
    return MAKERS[_way_of_asking(setting)]


def _choice(choices: list[tuple[Any, str]], common: dict[str, Any]) -> forms.Field:
    decided = common["required"] or common["initial"] is not None
    return ChoiceField(choices=choices if decided else [("", DEFAULT_CHOICE), *choices], **common)


def _area(lines: int, **attributes: str) -> forms.Widget:
    widget: forms.Widget = UnfoldAdminTextareaWidget(attrs={"rows": lines, **attributes})
    return widget


def _number(field: type[forms.IntegerField], widget: type[forms.Widget]) -> Maker:
    def make(setting: Setting, common: dict[str, Any]) -> forms.Field:
        attributes: dict[str, Any] = {"step": "any"} if field is forms.FloatField else {}
        if setting.bounds.lowest is not None:
            attributes["min"] = f"{setting.bounds.lowest:.15g}"
        if setting.bounds.highest is not None:
            attributes["max"] = f"{setting.bounds.highest:.15g}"
        made = field(**common, widget=widget())
        made.widget.attrs |= attributes
        return made

    return make


def _password(setting: Setting, common: dict[str, Any]) -> forms.Field:
    widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}, render_value=False)
    return forms.CharField(**common, widget=widget)


DEFAULT_CHOICE = "(default)"
WAYS_OF_WRITING = {"lines": "One a line.", "pairs": "One name=value a line.", "json": "As JSON."}
MAKERS: dict[str, Maker] = {
    "line": lambda _, common: forms.CharField(**common, widget=UnfoldAdminTextInputWidget()),
    "text": lambda _, common: MultilineField(**common, strip=False, widget=_area(LONG, **MONOSPACE)),
    "secret": _password,
    "secret text": lambda _, common: MultilineField(
        **common, widget=SecretTextarea(attrs={"rows": SHORT, **MONOSPACE})
    ),
    "switch": lambda _, common: forms.BooleanField(**common, widget=UnfoldBooleanSwitchWidget()),
    "yes, no or neither": lambda _, common: _choice(YES_NO, common),
    "whole number": _number(forms.IntegerField, UnfoldAdminIntegerFieldWidget),
    "number": _number(forms.FloatField, UnfoldAdminDecimalFieldWidget),
    "choice": lambda setting, common: _choice(_choices_of(setting.type), common),
    "lines": lambda _, common: LinesField(**common, widget=_area(SHORT)),
    "pairs": lambda _, common: PairsField(**common, widget=_area(SHORT, **MONOSPACE)),
    "json": lambda _, common: JsonValueField(**common, widget=_area(SHORT, **MONOSPACE)),
}
