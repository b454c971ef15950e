"""Authorization of REST requests: a token by its scopes, a member of staff by Django's permissions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission

from access.callers import Bounds, Scope, person_of

if TYPE_CHECKING:
    # REST framework imports this module while it imports its own views.
    from django.http import HttpRequest
    from rest_framework.request import Request
    from rest_framework.views import APIView

READING = ("GET", "HEAD", "OPTIONS")
WITHOUT_ACTION = (None, "metadata")  # Methods unknown to the view, which answers 405 after this check


@dataclass(frozen=True, slots=True)
class Access:
    scope: Scope  # Of a token; `catalogue:admin` includes all others, and `catalogue:read` all reading
    permission: str  # Required of a member of staff, such as `catalogue.view_source`
    other_scope: Scope | None = None
    other_permission: str = ""  # Sufficient instead of `permission`
    also: frozenset[str] = frozenset()  # Further permissions of a token; the view requires them of staff


def admin_access(permission: str, *actions: str) -> dict[str, Access]:
    """The same for several actions, by action."""
    return dict.fromkeys(actions, Access(Scope.ADMIN, permission))


class InsufficientScope(PermissionDenied):
    def __init__(self, scope: Scope) -> None:
        super().__init__(
            f"This needs a token with the scope {scope.value}: {scope.label}. The token's owner needs the "
            "permissions of that scope, too."
        )
        self.scope = scope


class AccessRequired(BasePermission):
    """Applies the view's `access`; an action that it does not name is refused."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not is_known(request) or (action := getattr(view, "action", None)) in WITHOUT_ACTION:
            return is_known(request)
        needed: Access | None = getattr(view, "access", {}).get(action)
        if needed is None:
            return False
        token: Any = request.auth
        if token is None:
            return _user_may(request.user, needed.permission, needed.other_permission)
        allowed = [scope for scope in (needed.scope, needed.other_scope) if scope]
        if request.method in READING:
            allowed.append(Scope.VIEW)
        if not any(map(token.allows, allowed)):
            # The most limited of the sufficient scopes.
            raise InsufficientScope(min(allowed, key=lambda scope: scope is Scope.ADMIN))
        return True


class AnyoneKnown(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return is_known(request)


def demand_of_staff(request: Request, permission: str) -> None:
    """Raises PermissionDenied, for permissions that depend on the body; tokens need only their scopes."""
    if request.auth is None:
        _user_may(request.user, permission)


def is_known(request: Request) -> bool:
    return request.auth is not None or request.user.is_authenticated


def is_administrator(request: Request | HttpRequest) -> bool:
    """Returns whether the caller sees everything; `catalogue:read` counts for reading only."""
    token: Any = getattr(request, "auth", None)  # The admin's requests have none
    if token is None:
        return bool(request.user.is_staff)
    return bool(token.allows(Scope.ADMIN) or (request.method in READING and token.allows(Scope.VIEW)))


def bounds_of(request: Request) -> Bounds:
    token: Any = request.auth
    bounds: Bounds = Bounds(person=person_of(request.user)) if token is None else token.caller.bounds
    return bounds


def scopes_of(user: Any) -> frozenset[str]:
    """Returns what the user, their agents and their tokens may do, as scopes. Queries once for `user`.

    A plain account, without any permission, is there to use workflows; a role says whether it may.
    """
    if not user.is_active:
        return frozenset()
    if not (user.is_staff or user.is_superuser or user.get_all_permissions()):
        return PLAIN
    return frozenset(grantable_scopes(user))


PLAIN: frozenset[str] = frozenset({Scope.READ, Scope.RUN})


def grantable_scopes(user: Any) -> list[Scope]:
    """The scopes of a token that gives its holder no right by REST that this user lacks."""
    return [scope for scope in Scope if user.is_superuser or user.has_perms(permissions_behind(scope))]


@cache
def permissions_behind(scope: Scope) -> frozenset[str]:
    """The permissions of a member of staff that equal this scope of a token."""
    demanded = list(_demands(get_resolver().url_patterns))
    return frozenset(
        permission
        for access, reads in demanded
        if scope in (Scope.ADMIN, access.scope, access.other_scope) or (scope is Scope.VIEW and reads)
        for permission in (access.permission, *access.also)
    )


def read_permissions_of(users: Iterable[Any]) -> None:
    """Reads the permissions of all these users in two queries, where Django would take two for each."""
    from django.contrib.auth.models import Permission

    found: dict[int, set[str]] = {
        user.pk: set() for user in users if user.is_active and not user.is_superuser
    }
    for owner in ("user", "group__user"):
        rows = Permission.objects.filter(**{f"{owner}__in": list(found)}).order_by()
        for key, app, codename in rows.values_list(owner, "content_type__app_label", "codename"):
            found[key].add(f"{app}.{codename}")
    for user in users:
        if user.pk in found:
            vars(user)["_perm_cache"] = found[user.pk]  # Where Django's own backend remembers them


def _demands(patterns: Iterable[URLPattern | URLResolver]) -> Iterator[tuple[Access, bool]]:
    """Yields what each action demands, and whether it only reads."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from _demands(pattern.url_patterns)
            continue
        demanded = getattr(getattr(pattern.callback, "cls", None), "access", {})
        for method, action in getattr(pattern.callback, "actions", {}).items():
            if action in demanded:
                yield demanded[action], method == "get"


def _user_may(user: Any, permission: str, other: str = "") -> bool:
    if not user.is_staff:
        raise PermissionDenied("Only staff may use the API with a session; others need an access token.")
    if not (user.has_perm(permission) or (other and user.has_perm(other))):
        raise PermissionDenied(f"This needs the permission {permission}; an administrator can grant it.")
    return True
