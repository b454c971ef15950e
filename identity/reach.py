"""Who can call what now: the callers that may connect, and the bounds in which calls of each are served."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.contrib.auth.models import User

from access.callers import Bounds, Scope
from access.permissions import read_permissions_of
from catalogue.exposure import ExposedCatalogue, Workflows
from catalogue.models import Workflow
from identity.models import AccessToken, AllowedApplication
from identity.oauth import grants

MAX_HOLDERS = 2_000  # Of each kind

Place = str | None  # The slug of a toolset's address; None: the common address


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A token, or an application that acts for its user, that may start workflows."""

    kind: str  # The name of the row's model
    pk: int
    name: str
    user: str  # Whose rights limit it; empty: nobody's
    bounds: Bounds

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.pk}"


def find_holders(*, with_applications: bool) -> list[Holder]:
    """Takes a constant number of queries. At most MAX_HOLDERS of each kind, in the order of their names."""
    tokens = list(AccessToken.objects.usable().select_related("toolset").order_by("name")[:MAX_HOLDERS])
    allowed = AllowedApplication.objects.filter(revoked_at=None, user__is_active=True)
    limit = MAX_HOLDERS if with_applications else 0
    applications = list(allowed.select_related("application").order_by("name", "pk")[:limit])
    keys = {key for token in tokens for key in (token.owner_id, token.created_by_id)}
    keys |= {one.user_id for one in applications}
    users: dict[int, Any] = User.objects.prefetch_related("groups").in_bulk(keys - {None})
    read_permissions_of(users.values())
    return [*_of_tokens(tokens, users), *_of_applications(applications, users)]


def _of_tokens(tokens: Iterable[AccessToken], users: dict[int, Any]) -> Iterator[Holder]:
    for token in tokens:
        token.owner = None if token.owner_id is None else users[token.owner_id]
        token.created_by = None if token.created_by_id is None else users[token.created_by_id]
        if Scope.RUN in (granted := token.granted):
            bounds, user = token.caller_granted(granted).bounds, token.rights_of
            named = "" if user is None else user.get_username()
            yield Holder(kind="accesstoken", pk=token.pk, name=token.name, user=named, bounds=bounds)


def _of_applications(applications: Iterable[AllowedApplication], users: dict[int, Any]) -> Iterator[Holder]:
    for allowed in applications:
        user, slug = users[allowed.user_id], allowed.toolset or None
        scopes = grants.scopes_of(user, toolset=slug).intersection(allowed.scopes)
        if not scopes.isdisjoint((Scope.RUN, Scope.ADMIN)):
            bounds = grants.caller_of(user, allowed.application, toolset=slug).bounds
            named = user.get_username()
            yield Holder(
                kind="allowedapplication", pk=allowed.pk, name=allowed.name, user=named, bounds=bounds
            )


@dataclass(eq=False)
class _Alike:
    """Holders with the same bounds, which see the same."""

    seen: dict[Place, Workflows]
    holders: list[Holder] = field(default_factory=list)

    @cached_property
    def tools(self) -> dict[str, Workflow]:
        """By name, in alphabetical order."""
        tools = {name: one for workflows in self.seen.values() for name, one in workflows.items()}
        return dict(sorted(tools.items()))


class Reach:
    """What each holder sees at each address, as `ExposedCatalogue.seen_within` serves it."""

    def __init__(self, catalogue: ExposedCatalogue, holders: Iterable[Holder]) -> None:
        self.holders = list(holders)
        self._alike: dict[Any, _Alike] = {}
        self._of: dict[str, _Alike] = {}
        for holder in self.holders:
            bounds = holder.bounds
            what = bounds.toolset, catalogue.reservations.exclusions_for(bounds.person)
            if what not in self._alike:
                # A holder that is not bound can also use the addresses of toolsets.
                places = [bounds.toolset] if bounds.toolset else [None, *catalogue.toolsets]
                seen = {place: catalogue.seen_within(Bounds(place, bounds.person)) for place in places}
                self._alike[what] = _Alike(
                    {place: workflows for place, workflows in seen.items() if workflows}
                )
            self._alike[what].holders.append(holder)
            self._of[holder.key] = self._alike[what]

    def seen_by(self, holder: Holder) -> dict[Place, Workflows]:
        """What it sees, by address."""
        return self._of[holder.key].seen

    def tools_of(self, holder: Holder) -> dict[str, Workflow]:
        """By name, in alphabetical order."""
        return self._of[holder.key].tools

    def callers_of(self, workflow: Workflow) -> list[tuple[list[Place], list[Holder]]]:
        """The holders that can call it, with the addresses at which they can."""
        name = workflow.tool_name
        found = (
            ([place for place, seen in alike.seen.items() if name in seen], alike.holders)
            for alike in self._alike.values()
        )
        return [(places, holders) for places, holders in found if places]
