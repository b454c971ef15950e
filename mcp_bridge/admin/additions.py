"""What this package adds to the pages of workflows and accounts, once other modules have registered them."""

import json
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.html import format_html
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import ValidationError

from catalogue.admin.base import Button, ButtonsMixin, button
from catalogue.admin.rendering import DASH, pretty_json
from catalogue.admin.workflows import WorkflowAdmin
from catalogue.descriptions import tokens_for
from catalogue.history import actor_of, record_change
from catalogue.models import Workflow
from identity.admin import users
from identity.models import ExternalIdentity, SecondFactor
from mcp_bridge.tool_lists import serialise_tool, tokens_by_key, workflow_tool

admin.site.unregister(User)


def _token_cost(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    entry = _entry_of(workflow)
    return ("In the tool list", f"about {tokens_for(len(entry)):,} tokens" if entry else "left out")


def _show_entry(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    if not (entry := _entry_of(workflow)):
        return ("", "")
    cost = format_html(
        '<p class="mb-3">{} characters in <code>tools/list</code>, about {} tokens. Toolsets in '
        "portable mode show it in a different form.</p>{}",
        f"{len(entry):,}",
        f"{tokens_for(len(entry)):,}",
        pretty_json(json.loads(entry)),
    )
    return ("As agents see it", cost)


def _entry_of(workflow: Workflow) -> str:
    """Empty if the row is invalid."""
    try:
        return serialise_tool(workflow_tool(workflow), LATEST_PROTOCOL_VERSION).decode()
    except ValidationError:
        return ""


def _weigh(rows: list[Workflow]) -> None:
    costs = tokens_by_key([row.pk for row in rows])
    for row in rows:
        row.tokens = costs.get(row.pk)  # type: ignore[attr-defined]


@admin.display(description="tokens")
def tokens(workflow: Any) -> str:
    return DASH if workflow.tokens is None else f"{workflow.tokens:,}"


WorkflowAdmin.further_facts.append(_token_cost)
WorkflowAdmin.further_sections.append(_show_entry)
WorkflowAdmin.prepare_rows.append(_weigh)
WorkflowAdmin.further_columns.append(tokens)


@admin.register(User)
class UserAdmin(ButtonsMixin, users.UserAdmin):
    buttons = ("reset_second_factor", "unlink_company_login")
    change_form_outer_before_template = "identity/admin/user.html"

    @button(
        "Reset second factor",
        icon="phonelink_erase",
        variant="danger",
        confirm="Remove the second factor of this account? Its password alone is then enough to log in.",
    )
    def reset_second_factor(self, request: HttpRequest, user: User) -> None:
        if not self.has_change_permission(request, user):
            raise PermissionDenied
        SecondFactor.objects.filter(user=user).delete()
        messages.success(request, f"{user.get_username()} no longer has a second factor.")

    @button(
        "Unlink company login",
        icon="link_off",
        variant="danger",
        records=True,
        confirm="Remove the link between this account and the company login? The next company login looks up "
        "the account again. To lock a person out, disable the account instead.",
    )
    def unlink_company_login(self, request: HttpRequest, user: User) -> None:
        if not self.has_change_permission(request, user):
            raise PermissionDenied
        links = ExternalIdentity.objects.filter(user=user)
        named = ", ".join(map(str, links))
        links.delete()
        record_change(actor_of(request), [user], f"Unlinked from {named}.")
        messages.success(request, f"{user.get_username()} is no longer linked to {named}.")

    @admin.display(description="Company logins")
    def company_logins(self, user: User) -> str:
        shown = (
            f"{one}, last used {one.last_login_at:%Y-%m-%d %H:%M} UTC"
            if one.last_login_at
            else f"{one}, never used"
            for one in user.identities.all()
        )
        return "; ".join(shown)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), "company_logins")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = super().get_fieldsets(request, obj)
        if obj is None or not obj.identities.exists():
            return shown
        return (*shown, ("Company login", {"fields": ("company_logins",)}))

    def get_buttons(self, request: HttpRequest, obj: User) -> list[Button]:
        if not self.has_change_permission(request, obj):
            return []
        present = {
            "reset_second_factor": SecondFactor.objects.filter(user=obj).exists(),
            "unlink_company_login": obj.identities.exists(),
        }
        return [button for button in super().get_buttons(request, obj) if present[button.name]]
