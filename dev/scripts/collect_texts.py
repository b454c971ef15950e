"""Django's `makemessages`, which finds texts in calls of gettext, and also names that stand in none."""

import json
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management.commands import makemessages
from django.utils.text import capfirst

from catalogue.actions.curation import Flag
from catalogue.actions.reviews import KINDS
from catalogue.admin.sources import WITHOUT_ONE
from catalogue.admin.tools import tool_settings
from catalogue.connections import settings_of, summary_of
from catalogue.exposure import Visibility
from catalogue.search_terms import MARKS
from config.environment import BASE_DIR
from connectors.registry import usable_connectors
from identity.client_configuration import McpClient

LEFT_OUT = [".*", "deploy", "dev", "dist", "docs", "examples", "tests", "var"]
# Texts of Unfold, which has no catalogue, where they are on our pages.
OF_UNFOLD = (
    "Add row",
    "After you've created a user, you\u2019ll be able to edit more user options.",
    "Apply Filters",
    "Choose file to upload",
    "Click to cancel",
    "Click to download",
    "Collapse",
    "Current file",
    "Dark",
    "Date",
    "Date from",
    "Date to",
    "Expand row",
    "False",
    "From",
    "General",
    "Go back",
    "Light",
    "Loading more results...",
    "Manage group",
    "Manage user",
    "More actions",
    "Name",
    "Next",
    "No data",
    "No recent searches",
    "No results found",
    "No results matching your query",
    "Not enough data.",
    "Previous",
    "Raw passwords are not stored, so there is no way to see this user\u2019s password, but you can change "
    'the password using <a href="{}" class="text-primary-600 dark:text-primary-500">this form</a>.',
    "Recent searches",
    "Reset filters",
    "Return to site",
    "Row",
    "Run",
    "Select action",
    "Select action to run",
    "Select all rows",
    "Select record",
    "Select value",
    "Search apps and models...",
    "System",
    "This item will be deleted.",
    "This page yielded into no results. Create a new item or reset your filters.",
    "To",
    "Toggle password visibility",
    "True",
    "Type to search",
    "Value",
    "Welcome",
    "Welcome back to",
    "You have been successfully logged out from the administration",
)

# Texts of Django that its German catalogue lacks.
OF_DJANGO = (
    "Disabled",
    "Enabled",
    "Password-based authentication",
    "Whether the user will be able to authenticate using a password or not. If disabled, they may still be "
    "able to authenticate using other backends, such as Single Sign-On or LDAP.",
)


class Command(makemessages.Command):
    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]

    def handle(self, *args: Any, **options: Any) -> None:
        import config.urls  # noqa: F401 - it registers the pages

        options["ignore_patterns"] += LEFT_OUT
        options |= {"no_wrap": True, "no_location": True, "no_obsolete": True}
        options["all"] = not options["locale"]
        found = BASE_DIR / "config" / "derived_names.py"
        texts = sorted(
            {
                *_names(),
                *_engine_texts(),
                *_setting_texts(),
                *_tool_texts(),
                *_marks(),
                *_clients(),
                *OF_UNFOLD,
                *OF_DJANGO,
            }
            - {""}
        )
        found.write_text("".join(f"_({json.dumps(text, ensure_ascii=False)})\n" for text in texts))
        try:
            super().handle(*args, **options)
        finally:
            found.unlink()


def _names() -> Iterator[str]:
    """Of models that have pages, and of their fields; and of the tables of groups and permissions, which the
    pages of deletion count."""
    for table in (User.groups.through, User.user_permissions.through, Group.permissions.through):
        yield from (str(table._meta.verbose_name), str(table._meta.verbose_name_plural))
    for model in apps.get_models():
        if admin.site.is_registered(model):
            its = model._meta
            yield from (str(its.verbose_name), str(its.verbose_name_plural))
            yield from (str(field.verbose_name) for field in (*its.local_fields, *its.local_many_to_many))


def _engine_texts() -> Iterator[str]:
    """What forms show of connectors, which are plain Python."""
    for kind, connector in usable_connectors().items():
        yield from (connector.label, summary_of(connector))
        for label, summary, _ in getattr(connector, "ready_made", tuple)():
            yield from (label, summary)
        for setting in settings_of(kind).values():
            yield from (setting.title, setting.help, setting.hints.group)
            if setting.secret:
                yield WITHOUT_ONE.sub("", setting.help)


def _tool_texts() -> Iterator[str]:
    for setting in tool_settings().values():
        yield from (setting.title, setting.help)


def _marks() -> Iterator[str]:
    yield from (mark.replace("-", " ") for mark in MARKS)
    yield from (one.words for one in Visibility)
    yield from Flag
    yield from (kind.removeprefix("upstream_").replace("_", " ") for kind in KINDS)


def _clients() -> Iterator[str]:
    for client in McpClient:
        yield from (client.label, client.place)


def _setting_texts() -> Iterator[str]:
    for setting in settings.LIVE_SETTINGS.values():
        yield from (setting["group"], setting["description"].replace("`", ""))
        yield capfirst(setting["name"].replace("_", " "))
