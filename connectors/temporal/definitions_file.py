"""A text that declares a Temporal service and its workflows, read as a whole or refused with every reason."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from connectors.definitions import WorkflowDefinition
from connectors.formats.yaml import (
    Document,
    Path,
    Problem,
    UnusableText,
    name_of,
    read_document,
    write_document,
)
from connectors.temporal.connection_block import DeclaredConnection, read_connection
from connectors.temporal.declarations import CacheBlock, DefinitionsFile
from connectors.temporal.declared_workflow import WorkflowReading, seconds_cached
from connectors.temporal.problems import WITH_SECRETS, problems_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """What a text declares."""

    workflows: list[WorkflowDefinition]
    connection: DeclaredConnection | None
    """None: it says nothing of the connection."""
    cache: CacheBlock | None
    entries: dict[str, dict[str, Any]]
    """The workflows as they stand in the text, each with what the text as a whole says of its cache."""


def read_definitions(content: bytes, *, default_task_queue: str = "") -> Declared:
    """Raises UnusableText, which names each problem's line and key."""
    document = read_document(content, private=WITH_SECRETS)
    problems = [*document.problems]

    def note(place: Path, message: str) -> None:
        problems.append(Problem(document.line_of(place), name_of(place), message))

    file = _validate(document, problems)
    reading = WorkflowReading(note, file.cache, default_task_queue)
    workflows = [reading.definition(name, declared) for name, declared in file.workflows.items()]
    connection = None if file.temporal is None else read_connection(file.temporal, note=note)
    if problems:
        raise UnusableText(problems)
    return Declared(
        workflows=[workflow for workflow in workflows if workflow is not None],
        connection=connection,
        cache=file.cache,
        entries=_entries(document.value["workflows"], file),
    )


def write_definitions(entries: dict[str, dict[str, Any]]) -> str:
    """A text that declares these workflows, and no connection."""
    return write_document({"workflows": entries})


def _validate(document: Document, problems: list[Problem]) -> DefinitionsFile:
    """What there is besides the parts that have problems. Raises UnusableText where nothing is left."""
    try:
        return DefinitionsFile.model_validate(document.value)
    except ValidationError as error:
        problems += problems_of(error, document)
        faulty = [tuple(one["loc"]) for one in error.errors(include_url=False, include_input=False)]
    try:
        return DefinitionsFile.model_validate(_without(document.value, faulty))
    except ValidationError:
        raise UnusableText(problems) from None


def _without(value: Any, faulty: list[Path]) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("workflows"), dict):
        return value
    workflows, blocks = (
        {place[1] for place in faulty if len(place) > 1},
        {place[0] for place in faulty if place},
    )
    kept = {name: entry for name, entry in value["workflows"].items() if name not in workflows}
    return {name: block for name, block in value.items() if name not in blocks} | {"workflows": kept}


def _entries(raw: dict[str, dict[str, Any]], file: DefinitionsFile) -> dict[str, dict[str, Any]]:
    entries = {}
    for name, declared in file.workflows.items():
        seconds = seconds_cached(declared, file.cache)
        entries[name] = raw[name] | {"cache": {"ttl": f"{seconds}s"} if seconds else False}
    return entries
