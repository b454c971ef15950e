"""Descriptions of workflows for agents, shared by every door, and their cost in tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from threading import Lock
from typing import Any

from cachetools import TTLCache, cached

from access.callers import Bounds
from catalogue.exposure import ExposedCatalogue
from catalogue.models import Source, Workflow
from catalogue.models.workflow import OF_OUTPUT
from catalogue.reduced_schemas import open_part
from catalogue.schemas import GENERIC_SCHEMA
from catalogue.served_schemas import describe_inputs, describe_outputs, serve_schema, summarise_inputs

SHORT_DESCRIPTION = 150
MAX_AGE_SECONDS = 0.5  # How old the outages of a process may be, as for the catalogue itself


@dataclass(frozen=True, slots=True)
class Outage:
    """An enabled source whose last listing failed or is held; agents see its last good list (A1.4)."""

    source: str
    since: datetime | None
    reason: str
    was_listed: bool


Outages = tuple[Outage, ...]


def outages_within(catalogue: ExposedCatalogue, outages: Outages, bounds: Bounds) -> Outages:
    exclusions = catalogue.reservations.exclusions_for(bounds.person)
    if not outages or (bounds.toolset is None and not exclusions):
        return outages
    sources = {workflow.source.name for workflow in catalogue.seen_within(bounds).values()}
    return tuple(outage for outage in outages if outage.source in sources)


def _reason(source: Source) -> str:
    """Uses the product's words: what an engine says of an error could instruct agents."""
    is_ours = source.health_error in (None, Source.HealthState.HELD)
    if is_ours or source.change_policy == Source.ChangePolicy.FOLLOW:
        return source.health_message
    return f"The last listing failed ({source.health_error})."


_recent: TTLCache[str, Outages] = TTLCache(1, MAX_AGE_SECONDS)
_lock = Lock()
forget_outages = _recent.clear


def fresh_outages() -> Outages | None:
    """Does not use the database; None if it must be queried."""
    with _lock:
        return _recent.get("outages")


@cached(_recent, key=lambda: "outages", lock=_lock)
def current_outages() -> Outages:
    unlisted = (Source.HealthState.FAILING, Source.HealthState.HELD)
    out = Source.objects.filter(enabled=True, health_state__in=unlisted).order_by("name")
    return tuple(
        Outage(one.name, one.failing_since, _reason(one), one.last_refreshed_at is not None) for one in out
    )


class Mode(StrEnum):
    COMPACT = "compact"
    STANDARD = "standard"
    DETAILED = "detailed"


def summarise_workflow(workflow: Workflow, mode: Mode = Mode.COMPACT) -> dict[str, Any]:
    """One entry of a list (D1): `{name, description, tags, input_summary}`, or all in detailed mode."""
    described = workflow.shown_description
    summary: dict[str, Any] = {
        "name": workflow.tool_name,
        "description": shorten(described) if mode == Mode.COMPACT else described,
        "tags": workflow.shown_tags,
    }
    if mode != Mode.DETAILED:
        return summary | {"input_summary": summarise_inputs(workflow.offered_input_schema)}
    return summary | {
        "version": workflow.version,
        "author": workflow.author or None,
        "inputs": describe_inputs(workflow.offered_input_schema),
        "outputs": describe_outputs(workflow.output_schema),
    }


def describe_workflow(workflow: Workflow) -> dict[str, Any]:
    """Everything that callers may know of a workflow (D7)."""
    described: dict[str, Any] = {
        "name": workflow.tool_name,
        "title": workflow.title,
        "description": workflow.shown_description,
        "tags": workflow.shown_tags,
        "category": workflow.category,
        "version": workflow.version,
        "author": workflow.author or None,
        "source": workflow.source.name,
        "execution_type": workflow.effective_execution_type,
        "timeout_seconds": workflow.effective_timeout_seconds,
        "cache_seconds": workflow.effective_cache_seconds,
        "hints": workflow.effective_hints,
        "icons": workflow.shown_icons,
        "input_schema": workflow.served_input_schema,
        "output_schema": workflow.served_output_schema,
        # Queries and signals in full; empty kinds are left out.
        **{
            name: [
                one | {"inputSchema": serve_schema(one.get("inputSchema") or GENERIC_SCHEMA)}
                for one in declared
            ]
            for name, declared in declared_interactions(workflow).items()
        },
    }
    failing = [outage for outage in current_outages() if outage.source == workflow.source.name]
    return described | ({"unavailable_source": _describe_outages(failing)[0]} if failing else {})


def describe_part(workflow: Workflow, part: str) -> dict[str, Any]:
    """A part of its schemas, with what it refers to: of the input schema, or by a pointer into the whole
    description. Raises UnknownPart."""
    schemas = {"/input_schema": workflow.offered_input_schema, OF_OUTPUT: workflow.output_schema or {}}
    for kind, declared in declared_interactions(workflow).items():
        schemas |= {
            f"/{kind}/{number}/inputSchema": one.get("inputSchema") or {}
            for number, one in enumerate(declared)
        }
    place = next((one for one in schemas if f"{part}/".startswith(f"{one}/")), "")
    within = "" if place == "/input_schema" else place
    schema = open_part(schemas[place or "/input_schema"], part[len(place) :], within=within)
    return {"name": workflow.tool_name, "part": part, "schema": schema}


def unavailable_sources(catalogue: ExposedCatalogue, bounds: Bounds) -> list[dict[str, Any]]:
    """`[{source, since, reason, shown}]` that the caller sees; `shown`: whether a last good list is."""
    return _describe_outages(outages_within(catalogue, current_outages(), bounds))


def _describe_outages(outages: Iterable[Outage]) -> list[dict[str, Any]]:
    return [
        {
            "source": outage.source,
            "since": outage.since and outage.since.isoformat(timespec="seconds"),
            "reason": outage.reason,
            "shown": "the last good list" if outage.was_listed else "nothing",
        }
        for outage in outages
    ]


def shorten(text: str, length: int = SHORT_DESCRIPTION) -> str:
    """One line, cut after its last complete word within the length, with "..."."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    start, last_word_is_whole = line[:length], line[length] == " "
    kept = start if last_word_is_whole else start.rpartition(" ")[0] or start
    return kept.rstrip(" .,;:") + "..."


# Queries and signals of running workflows (E10)


class InteractionKind(StrEnum):
    QUERY = "query"
    SIGNAL = "signal"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredInteraction:
    kind: InteractionKind
    name: str
    description: str
    schema: dict[str, Any]  # JSON Schema that arguments are validated against


def interactions_of(workflow: Workflow, kind: InteractionKind | None = None) -> list[DeclaredInteraction]:
    """Keeps the engine's order, queries first."""
    declared: dict[InteractionKind, Sequence[dict[str, Any]]] = {
        InteractionKind.QUERY: workflow.queries,
        InteractionKind.SIGNAL: workflow.signals,
    }
    return [
        DeclaredInteraction(
            kind=of_kind,
            name=one["name"],
            description=one.get("description", ""),
            schema=one.get("inputSchema") or GENERIC_SCHEMA,
        )
        for of_kind, several in declared.items()
        for one in several
        if kind in (None, of_kind)
    ]


def declared_interactions(workflow: Workflow) -> dict[str, list[dict[str, Any]]]:
    """Returns them as the engine declares them, without empty kinds."""
    both = {"queries": workflow.queries, "signals": workflow.signals}
    return {name: declared for name, declared in both.items() if declared}


CHARACTERS_PER_TOKEN = 4  # Of English and JSON; each model counts differently


def tokens_for(characters: int) -> int:
    """An estimate, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)
