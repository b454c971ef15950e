"""How the fields of a source's form are laid out: what everybody looks at first, the rest in folds."""

from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalogue.admin.setting_fields import SETTING
from catalogue.admin.source_form import FORGET, KEPT_ENTRIES, known_settings, stored_credentials
from catalogue.engine_settings import Setting
from catalogue.kinds import summary_of
from catalogue.models import Source
from connectors.errors import Misconfigured
from connectors.registry import connector_class, connector_kinds

OWN_FIELDS = ("name", "enabled")
DISCOVERY_FIELDS = ("new_workflows", "change_policy", "vanishing_share_percent", "refresh_interval")
LIMIT_FIELDS = ("max_concurrent",)
ANOTHER_KIND = SafeString('<a href="?" class="underline">Another kind</a>')


def fieldsets_to_read() -> list[Any]:
    return [(None, {"fields": [*OWN_FIELDS, *DISCOVERY_FIELDS, *LIMIT_FIELDS, "settings_shown"]})]


def fieldsets_to_fill_in(kind: str, source: Source | None) -> list[Any]:
    """Settings without a group first, then each group in a fold of its own."""
    lines: dict[str, list[Any]] = {"": []}
    stored = stored_credentials(source) if source else {}
    for setting in known_settings(kind).values():
        lines.setdefault(setting.hints.group, []).append(_line(setting, stored))
    return [
        (None, {"fields": ["name", "kind_label" if source else "kind", "enabled", KEPT_ENTRIES]}),
        (label_of(kind), {"fields": lines.pop(""), "description": "" if source else _introduction(kind)}),
        *((group, {"fields": fields, "classes": ["collapse"]}) for group, fields in lines.items()),
        ("Discovery", {"fields": DISCOVERY_FIELDS}),
        ("Limits", {"fields": LIMIT_FIELDS}),
    ]


def label_of(kind: str) -> str:
    try:
        return connector_class(kind).label
    except Misconfigured as error:
        return error.message if kind else ""


def _introduction(kind: str) -> SafeString:
    if not known_settings(kind):
        return SafeString()
    others = ANOTHER_KIND if len(connector_kinds()) > 1 else ""
    return format_html("{} {}", summary_of(connector_class(kind)), others)


def _line(setting: Setting, stored: dict[str, str]) -> Any:
    field = SETTING + setting.name
    may_be_forgotten = setting.secret and stored.get(setting.name) and not setting.required
    return (field, FORGET + setting.name) if may_be_forgotten else field
