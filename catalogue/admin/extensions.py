from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string


def added(part: str) -> list[Any]:
    """The functions and classes that other rooms add to a part of a page."""
    return [import_string(name) for name in settings.ADMIN_EXTENSIONS[part]]


def added_by_permission(part: str) -> dict[str, Any]:
    """Returns the extensions that only users with a permission see, by that permission."""
    named: dict[str, str] = settings.ADMIN_EXTENSIONS[part]
    return {permission: import_string(name) for permission, name in named.items()}
