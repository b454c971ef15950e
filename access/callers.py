"""Describes callers, their scopes and rates, and the sources and toolsets reserved for some people."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

USER, GROUP = "user:", "group:"
Person = frozenset[str]  # The keys of a user and the groups, such as `user:7` and `group:3`
MAX_NAMES = 500


class Scope(models.TextChoices):
    READ = "workflows:read", _("list workflows and read one's own executions")
    RUN = "workflows:run", _("start executions, and read and cancel those")
    VIEW = "catalogue:read", _("see by REST all that administrators see, and change nothing")
    ADMIN = "catalogue:admin", _("everything, curating by REST and all executions included")


def describe_lack(*scopes: str) -> str:
    """A token has its scopes within the permissions of its owner, so either can be the reason."""
    return f"it lacks the scope {' or '.join(scopes)}, or its owner lacks the permissions of that scope."


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of what a caller sees and runs."""

    toolset: str | None = None  # A slug; None: everything exposed
    person: Person | None = None  # To whom reservations apply; None: they do not apply, as for superusers


UNBOUNDED = Bounds()


def person_of(user: Any) -> Person | None:
    """None for superusers, because no reservation excludes them; otherwise one query."""
    if user.is_superuser and user.is_active:
        return None
    # Not `values_list`: the groups may be prefetched.
    return frozenset({f"{USER}{user.pk}", *(f"{GROUP}{group.pk}" for group in user.groups.all())})


def check_form(names: Any) -> None:
    """Raises ValidationError."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValidationError("This must be a list of names.")
    if wrong := [name for name in names if not name.startswith((USER, GROUP)) or not name.partition(":")[2]]:
        shown = ", ".join(wrong)[:200]
        raise ValidationError(
            f"Each name must begin with {USER} or {GROUP}, such as {GROUP}Finance; not {shown}."
        )
    if len(names) > MAX_NAMES:
        raise ValidationError(f"There can be at most {MAX_NAMES} names: put the users into a group.")


def find_keys(names: Iterable[str]) -> dict[str, str]:
    """`{"user:ada": "user:7"}` for the users and groups that exist; two queries at most."""
    from django.contrib.auth.models import Group, User

    keys: dict[str, str] = {}
    given = list(names)
    for kind, model, column in ((USER, User, "username"), (GROUP, Group, "name")):
        if wanted := [name.removeprefix(kind) for name in given if name.startswith(kind)]:
            rows: Any = model._default_manager.filter(**{f"{column}__in": wanted})
            keys |= {f"{kind}{name}": f"{kind}{key}" for name, key in rows.values_list(column, "pk")}
    return keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    key: str  # What is counted, e.g. `token:7`; calls with one key share the rate in all processes
    per_minute: int
    at_once: int  # So many calls pass without a pause between them
    whose: str  # For the refusal, e.g. `this token`


def rate_of(key: str, per_minute: int | None, at_once: int | None, *, whose: str) -> Rate | None:
    """None without a limit. By default, ten seconds' worth of calls pass at once."""
    if not per_minute:
        return None
    return Rate(key=key, per_minute=per_minute, at_once=at_once or -(-per_minute // 6), whose=whose)


class Kept(Protocol):
    """A row that belongs to a caller."""

    caller: str
    toolset: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    key: str  # Stable; executions are kept under it, e.g. `token:7` or `user:1`.
    name: str
    sees_everything: bool = False  # Administrators see every execution; others only their own
    toolset: str | None = None  # Slug of the toolset that limits what is visible; None: no limit
    is_confined: bool = False  # Others share its key: of what is kept under it, only the toolset's is its own
    person: Person | None = None  # To whom reservations apply; None: superusers, and tokens without an owner
    user_id: int | None = None  # The user that it acts for; None: none is known
    rates: tuple[Rate, ...] = ()  # Of the token

    @classmethod
    def of_user(cls, user: Any, *, sees_everything: bool) -> "Caller":
        """Returns the caller of a session."""
        return cls(
            key=f"user:{user.pk}",
            name=user.get_username(),
            sees_everything=sees_everything,
            person=person_of(user),
            user_id=user.pk,
        )

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.toolset, self.person)

    @property
    def own(self) -> models.Q:
        """Selects its own rows, of models with the columns `caller` and `toolset`."""
        own = models.Q(caller=self.key)
        return own & models.Q(toolset=self.toolset) if self.is_confined else own

    def owns(self, row: Kept) -> bool:
        return row.caller == self.key and (not self.is_confined or row.toolset == self.toolset)

    @property
    def counted_as(self) -> str:
        """The key under which the calls of all tokens of one user count."""
        return self.key if self.user_id is None else f"user:{self.user_id}"
