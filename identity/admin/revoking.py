from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from catalogue.admin.base import Button, ButtonsMixin, button, change_if_sure
from catalogue.history import Actor, actor_of


class RevokingMixin(ButtonsMixin):
    """Revokes rows with a `revoked_at`: one by a button, selected ones by an action."""

    noun: str
    note = "The clients of {} are locked out."
    actions = ("revoke_selected",)
    buttons: Iterable[str] = ("revoke",)

    def end_access(self, rows: Iterable[Any], *, by: Actor) -> int:
        """Returns how many were not revoked before, and records it."""
        raise NotImplementedError

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self.may_press_buttons(request)

    def get_buttons(self, request: HttpRequest, obj: Any) -> list[Button]:
        return [] if obj.revoked_at else super().get_buttons(request, obj)

    @button(
        _("Revoke"),
        icon="block",
        variant="danger",
        confirm="Revoke this access? Its clients are locked out.",
        records=True,
    )
    def revoke(self, request: HttpRequest, obj: Any) -> None:
        self.end_access([obj], by=actor_of(request))
        messages.success(request, f"Revoked: {obj}.")

    @admin.action(description=_("Revoke"), permissions=["revoke"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        chosen = queryset.filter(revoked_at=None)
        revoke = partial(self.end_access, chosen, by=actor_of(request))
        said = {"done": "Revoked: {:,}.", "note": self.note}
        return change_if_sure(self, request, chosen, "Revoke access", revoke, **said, noun=(self.noun,))
