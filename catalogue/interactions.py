"""Queries and signals of running workflows, as the engine declares them (E10)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from catalogue.models import Workflow
from catalogue.schema_limits import UnsafeSchema
from catalogue.schemas import GENERIC_SCHEMA, check_input_schema
from catalogue.served_schemas import serve_schema
from connectors.definitions import Interaction

MOST = 50  # Queries, and as many signals, kept per workflow


class InteractionKind(StrEnum):
    QUERY = "query"
    SIGNAL = "signal"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredInteraction:
    kind: InteractionKind
    name: str
    description: str
    schema: dict[str, Any]  # JSON Schema that arguments are validated against


def read_interactions(declared: Iterable[Interaction]) -> tuple[list[dict[str, Any]], list[str]]:
    """The kept interactions, `[{name, description, inputSchema}]`, and the problems of the others. A broken
    schema is replaced by one that takes any object, as for workflows; an interaction with a dangerous schema
    is dropped."""
    kept: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for interaction in declared:
        if interaction.name in kept or len(kept) == MOST:
            why = "it is declared twice" if interaction.name in kept else f"there are more than {MOST}"
            problems.append(f"{interaction.name} is left out: {why}.")
            continue
        try:
            checked = check_input_schema(interaction.input_schema)
        except UnsafeSchema as error:
            problems.append(f"{interaction.name} is left out: {error}")
            continue
        if checked.remark:
            problems.append(f"{interaction.name}: {checked.remark}")
        kept[interaction.name] = interaction.model_dump() | {"inputSchema": checked.schema}
    return list(kept.values()), problems


def interactions_of(workflow: Workflow, kind: InteractionKind | None = None) -> list[DeclaredInteraction]:
    """In the engine's order, queries first."""
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


def describe_interactions(workflow: Workflow) -> dict[str, Any]:
    """`{queries: [...], signals: [...]}` in full; empty kinds are left out."""
    return {
        name: [
            one | {"inputSchema": serve_schema(one.get("inputSchema") or GENERIC_SCHEMA)} for one in declared
        ]
        for name, declared in declared_interactions(workflow).items()
    }


def declared_interactions(workflow: Workflow) -> dict[str, list[dict[str, Any]]]:
    """As the engine declares them, by the same names."""
    both = {"queries": workflow.queries, "signals": workflow.signals}
    return {name: declared for name, declared in both.items() if declared}
