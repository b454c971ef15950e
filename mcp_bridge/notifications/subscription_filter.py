"""What a listener wants to be told of, and which of it may be told."""

import contextlib
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from catalogue.scopes import Scope
from executions.models import Execution
from mcp_bridge.access import Access
from mcp_bridge.resources import ResourceKind, UnknownResource, find_kind
from mcp_bridge.resources.executions import EXECUTION_RESOURCES
from mcp_bridge.resources.resource import Reading

SCOPES: Mapping[ServerEvent, tuple[Scope, ...]] = {
    ToolsListChanged(): (Scope.READ, Scope.RUN),
    PromptsListChanged(): (Scope.RUN,),
    ResourcesListChanged(): (Scope.READ,),
}
"""Of which any lets a caller hear of it: without them its list is always empty."""
STATE, *RESULTS = EXECUTION_RESOURCES

Addresses = Mapping[uuid.UUID, Collection[str]]
"""As the listener wrote them, by the execution that they are about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interests:
    """What one listener is told of."""

    events: tuple[ServerEvent, ...] = ()
    """Those that come of changes of the catalogue."""
    states: Addresses = field(default_factory=dict)
    """Resources that show how an execution is."""
    results: Addresses = field(default_factory=dict)
    """Resources that are there once it has ended."""
    tasks: tuple[uuid.UUID, ...] = ()

    @property
    def executions(self) -> tuple[uuid.UUID, ...]:
        return tuple(dict.fromkeys((*self.tasks, *self.states, *self.results)))

    @property
    def addresses(self) -> set[str]:
        of_executions = (*self.states.values(), *self.results.values())
        return {event.uri for event in self.events if isinstance(event, ResourceUpdated)}.union(
            *of_executions
        )

    def events_of(self, execution: Execution) -> Iterable[ResourceUpdated]:
        """What news of the execution is told as."""
        results = self.results.get(execution.pk, ()) if execution.is_settled else ()
        return map(ResourceUpdated, (*self.states.get(execution.pk, ()), *results))


def admissible_lists(access: Access) -> tuple[ServerEvent, ...]:
    """The events of the lists that the caller may hear of."""
    return tuple(event for event, scopes in SCOPES.items() if any(map(access.allows, scopes)))


def admit_interests(
    access: Access,
    *,
    lists: Collection[ServerEvent] = (),
    addresses: Iterable[str] = (),
    tasks: Iterable[str] = (),
) -> Interests:
    """What of it there is and the caller may see; what is foreign and what is unknown are left out alike."""
    resources = list(_find_resources(access, addresses))
    states, results = _addresses_of([STATE], resources), _addresses_of(RESULTS, resources)
    keys = [key for text in dict.fromkeys(tasks) if (key := _execution_key(text)) is not None]
    visible = _visible_executions(access, {*states, *results, *keys})
    return Interests(
        events=(
            *(event for event in admissible_lists(access) if event in lists),
            *(ResourceUpdated(uri) for uri in _readable_of_catalogue(resources)),
        ),
        states={key: found for key, found in states.items() if key in visible},
        results={key: found for key, found in results.items() if key in visible},
        tasks=tuple(key for key in keys if key in visible),
    )


def _find_resources(access: Access, addresses: Iterable[str]) -> Iterator[tuple[ResourceKind, Reading]]:
    for uri in addresses:
        with contextlib.suppress(UnknownResource):
            kind, variables = find_kind(uri)
            if kind.is_open_to(access.scopes):
                yield kind, Reading(access, uri, variables)


def _readable_of_catalogue(resources: Iterable[tuple[ResourceKind, Reading]]) -> Iterator[str]:
    for kind, reading in resources:
        if kind not in EXECUTION_RESOURCES:
            with contextlib.suppress(UnknownResource):
                kind.read(reading)
                yield reading.uri


def _addresses_of(
    wanted: Collection[ResourceKind], resources: Iterable[tuple[ResourceKind, Reading]]
) -> Addresses:
    found: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
    for kind, reading in resources:
        if kind in wanted and (key := _execution_key(reading.variables["id"].lower())) is not None:
            found[key].append(reading.uri)
    return found


def _visible_executions(access: Access, keys: set[uuid.UUID]) -> set[uuid.UUID]:
    if not keys or not (access.allows(Scope.READ) or access.allows(Scope.RUN)):
        return set()
    visible = Execution.objects.visible_to(access.caller).filter(pk__in=keys)
    return set(visible.values_list("pk", flat=True))


def _execution_key(text: str) -> uuid.UUID | None:
    """Of an id as we write it: clients compare it too."""
    with contextlib.suppress(ValueError):
        key = uuid.UUID(text)
        return key if str(key) == text else None
    return None
