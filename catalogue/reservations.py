"""Sources and toolsets that are reserved for some users and groups."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

USER, GROUP = "user:", "group:"
Person = frozenset[str]  # As reservations name one: `user:ada` and `group:Finance` for each of the groups
MOST_NAMES = 500


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits what a caller sees and runs."""

    toolset: str | None = None  # A slug; None: everything exposed
    person: Person | None = None  # To whom reservations apply; None: to nobody, as for superusers


UNBOUNDED = Bounds()


def person_of(user: Any) -> Person | None:
    """None for superusers, whom no reservation excludes; a query otherwise."""
    if user.is_superuser and user.is_active:
        return None
    # Not `values_list`: the groups may be prefetched.
    groups = (f"{GROUP}{group.name}" for group in user.groups.all())
    return frozenset({f"{USER}{user.get_username()}", *groups})


def check_form(names: Any) -> None:
    """Raises ValidationError."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValidationError("Give a list of names.")
    if wrong := [name for name in names if not name.startswith((USER, GROUP)) or not name.partition(":")[2]]:
        shown = ", ".join(wrong)[:200]
        raise ValidationError(
            f"Each name begins with {USER} or {GROUP}, such as {GROUP}Finance; not {shown}."
        )
    if len(names) > MOST_NAMES:
        raise ValidationError(f"At most {MOST_NAMES} names: make a group of the users.")


def find_unknown(names: Collection[str]) -> list[str]:
    """Those without a user or group; two queries at most."""
    from django.contrib.auth.models import Group, User

    known: set[str] = set()
    if users := _without(USER, names):
        known |= {USER + name for name in _names_of(User, "username", users)}
    if groups := _without(GROUP, names):
        known |= {GROUP + name for name in _names_of(Group, "name", groups)}
    return sorted(set(names) - known)


def _without(kind: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(kind) for name in names if name.startswith(kind)]


def _names_of(model: Any, column: str, names: list[str]) -> Iterable[str]:
    found: Iterable[str] = model.objects.filter(**{f"{column}__in": names}).values_list(column, flat=True)
    return found
