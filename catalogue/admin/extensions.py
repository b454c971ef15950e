from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from connectors.formats.json import readable_json


@dataclass(frozen=True, slots=True)
class Cell:
    """What a column that another room adds to a list shows of a row: a text or a time."""

    text: str = ""
    href: str = ""
    at: datetime | None = None


def added(part: str) -> list[Any]:
    """The functions and classes that other rooms add to a part of a page."""
    return [import_string(name) for name in settings.ADMIN_EXTENSIONS[part]]


def added_by_permission(part: str) -> dict[str, Any]:
    """Returns the extensions that only users with a permission see, by that permission."""
    named: dict[str, str] = settings.ADMIN_EXTENSIONS[part]
    return {permission: import_string(name) for permission, name in named.items()}


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A workflow as agents read it in a list of tools."""

    tool: dict[str, Any]
    characters: int
    tokens: int

    @property
    def as_json(self) -> str:
        return readable_json(self.tool)
