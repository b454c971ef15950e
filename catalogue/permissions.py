"""Who may do what by REST: a token by its scopes, a member of staff by Django's permissions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission

from catalogue.scopes import Scope

if TYPE_CHECKING:
    # REST framework imports this module while it imports its own views.
    from rest_framework.request import Request
    from rest_framework.views import APIView

WITHOUT_ACTION = (None, "metadata")
"""Methods that a view does not know; they are answered with 405 after this."""


@dataclass(frozen=True, slots=True)
class Access:
    """What one action of a view demands."""

    scope: Scope
    """Of a token; `catalogue:admin` includes the others."""
    permission: str
    """Of a member of staff, such as `catalogue.view_source`."""
    other_scope: Scope | None = None
    """One that will do as well."""


class InsufficientScope(PermissionDenied):
    """The token is valid, but not for this."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(f"This needs a token with the scope {scope.value}: {scope.label}.")
        self.scope = scope


class AccessRequired(BasePermission):
    """Asks for what the view's `access` says of the action; an action that it does not name is refused."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not is_known(request) or (action := getattr(view, "action", None)) in WITHOUT_ACTION:
            return is_known(request)
        needed: Access | None = getattr(view, "access", {}).get(action)
        if needed is None:
            return False
        if request.auth is not None:
            return _token_allows(request.auth, needed)
        return _user_may(request.user, needed.permission)


class AnyoneKnown(BasePermission):
    """Any valid token, and every member of staff."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return is_known(request)


def demand_of_staff(request: Request, permission: str) -> None:
    """For what depends on the request's body; a token's scopes say it all. Raises PermissionDenied."""
    if request.auth is None:
        _user_may(request.user, permission)


def is_known(request: Request) -> bool:
    """Whether the request came with a valid token or from a session of any user."""
    return request.auth is not None or request.user.is_authenticated


def is_administrator(request: Request) -> bool:
    """Whether the caller sees everything: by the scope `catalogue:admin`, or as a member of staff."""
    token: Any = request.auth
    return request.user.is_staff if token is None else bool(token.allows(Scope.ADMIN))


def toolset_of(request: Request) -> str | None:
    """The slug of the toolset that bounds what the caller sees; None: no bounds."""
    token: Any = request.auth
    return None if token is None or token.toolset is None else str(token.toolset.slug)


def grantable_scopes(user: Any) -> list[Scope]:
    """The scopes of a token by which its holder may do nothing that this user may not do by REST."""
    return [scope for scope in Scope if user.is_superuser or user.has_perms(permissions_behind(scope))]


@cache
def permissions_behind(scope: Scope) -> frozenset[str]:
    """What a member of staff needs for everything that the API lets a token of this scope do."""
    demanded = list(_demands(get_resolver().url_patterns))
    return frozenset(
        access.permission
        for access in demanded
        if scope is Scope.ADMIN or scope in (access.scope, access.other_scope)
    )


def _demands(patterns: Iterable[URLPattern | URLResolver]) -> Iterator[Access]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _demands(pattern.url_patterns)
        else:
            yield from getattr(getattr(pattern.callback, "cls", None), "access", {}).values()


def _token_allows(token: Any, needed: Access) -> bool:
    if not any(token.allows(scope) for scope in (needed.scope, needed.other_scope) if scope):
        raise InsufficientScope(needed.scope)
    return True


def _user_may(user: Any, permission: str) -> bool:
    if not user.is_staff:
        raise PermissionDenied("Only staff may use the API with a session; others need an access token.")
    if not user.has_perm(permission):
        raise PermissionDenied(f"This needs the permission {permission}; an administrator can grant it.")
    return True
