"""One declaration of a file as the definition that discovery takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from connectors.definitions import Interaction, WorkflowDefinition
from connectors.formats.yaml import Path
from connectors.temporal.declarations import (
    CacheBlock,
    InputDeclaration,
    InteractionDeclaration,
    OutputDeclaration,
    WorkflowDeclaration,
)
from connectors.temporal.problems import message_of, suggest
from connectors.temporal.schemas import Note, Schema, object_schema
from connectors.temporal.settings import (
    EXECUTION_ID,
    METADATA_KEY,
    WORKFLOW,
    TemporalSettings,
    placeholders_in,
)

ID_TYPES = ("string", "number", "integer")
"""Of fields whose values may stand in a workflow id."""
NO_INPUT = "none"
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


def seconds_cached(declared: WorkflowDeclaration, cache: CacheBlock | None) -> int | None:
    """Its own word, else the file's; where the file switches caching off, nothing is cached."""
    own = declared.cache
    if (cache is not None and not cache.enabled) or (own is not None and not own.enabled):
        return None
    ttl = (own.ttl if own else None) or (cache.ttl if cache else None)
    return None if ttl is None else math.ceil(ttl)


@dataclass(frozen=True, slots=True)
class WorkflowReading:
    """Makes definitions of declarations; what is wrong with one is noted with its place."""

    note: Note
    cache: CacheBlock | None
    default_task_queue: str

    def definition(self, name: str, declared: WorkflowDeclaration) -> WorkflowDefinition | None:
        place: Path = ("workflows", name)
        if not (declared.task_queue or self.default_task_queue):
            self.note((*place, "taskQueue"), "required, but missing")
        input_schema = self._input_schema(declared.input, (*place, "input"))
        said = _said(category=declared.category, version=declared.version) | {
            "id": name,
            "name": name,
            "title": declared.title or "",
            "description": _description(declared),
            "tags": declared.tags,
            "inputSchema": input_schema,
            "outputSchema": self._output_schema(declared.output, (*place, "output")),
            "timeout_seconds": declared.timeout and math.ceil(declared.timeout),
            "cache_seconds": seconds_cached(declared, self.cache),
            "queries": self._interactions(declared.queries, (*place, "queries")),
            "signals": self._interactions(declared.signals, (*place, "signals")),
            "metadata": {METADATA_KEY: self._settings(declared, input_schema, place)},
        }
        try:
            definition = WorkflowDefinition.model_validate(said)
        except ValidationError as error:
            self.note(place, _first_reason(error))
            return None
        if definition.name != name:
            self.note(place, "a name has no blanks around it and no control characters in it")
        return definition

    def _input_schema(self, declared: InputDeclaration | None, place: Path) -> Schema:
        if declared is None or not _takes_input(declared):
            if declared is not None and declared.fields:
                self.note((*place, "fields"), "there are none where the type is none")
            return NO_ARGUMENTS
        if declared.fields is not None:
            fields = (*place, "fields")
            return object_schema(declared.fields, title=_title(declared), place=fields, note=self.note)
        if declared.positional:
            self.note((*place, "positional"), "needs fields, whose order it means")
        return _said(title=_title(declared)) | {"type": "object"}

    def _output_schema(self, declared: OutputDeclaration | None, place: Path) -> Schema | None:
        """Only where fields are written down: a type's name promises nothing that can be checked."""
        if declared is None or declared.fields is None:
            return None
        fields = (*place, "fields")
        schema = object_schema(declared.fields, title=_title(declared), place=fields, note=self.note)
        # A result may tell more than it promises.
        return schema | {"additionalProperties": True}

    def _interactions(self, declared: Mapping[str, InteractionDeclaration], place: Path) -> list[Interaction]:
        interactions = []
        for name, one in declared.items():
            fields = (*place, name, "fields")
            schema = None
            if one.fields is not None:
                schema = object_schema(one.fields, title=None, place=fields, note=self.note)
            said = {"name": name, "description": one.description, "inputSchema": schema}
            try:
                interactions.append(Interaction.model_validate(said))
            except ValidationError as error:
                self.note((*place, name), _first_reason(error))
        return interactions

    def _settings(self, declared: WorkflowDeclaration, input_schema: Schema, place: Path) -> dict[str, Any]:
        """What differs from what `TemporalSettings` says by itself."""
        self._check_recipe(declared.workflow_id, input_schema, (*place, "workflowId"))
        positional = declared.input is not None and declared.input.positional
        settings = _said(
            task_queue=declared.task_queue,
            workflow_id=declared.workflow_id,
            workflow_id_defaults=_defaults_in(declared.workflow_id, input_schema),
            id_reuse_policy=_snake_case(declared.id_reuse_policy),
            id_conflict_policy=_snake_case(declared.id_conflict_policy),
            progress_query=declared.progress_query,
            input=_passed_as(declared.input),
            input_order=list(input_schema.get("properties", {})) if positional else None,
        )
        try:
            TemporalSettings.model_validate(settings)
        except ValidationError as error:
            self.note(place, _first_reason(error))
        return settings

    def _check_recipe(self, recipe: str | None, input_schema: Schema, place: Path) -> None:
        try:
            names = placeholders_in(recipe or "")
        except ValueError as error:
            self.note(place, str(error))
            return
        # Of an input without fields nobody knows what it has.
        if "properties" not in input_schema:
            return
        for name in names:
            if name not in (EXECUTION_ID, WORKFLOW) and (objection := _objection(name, input_schema)):
                self.note(place, f"{{{name}}} {objection}")


def _objection(name: str, input_schema: Schema) -> str:
    """Why no workflow id can be made of this field; empty where each call has a value for it."""
    fields: Schema = input_schema["properties"]
    if name not in fields:
        suggested = suggest(name, [EXECUTION_ID, WORKFLOW, *fields])
        return "is unknown; " + (f"did you mean {{{suggested}}}?" if suggested else "there is no such field")
    if fields[name].get("type") not in ID_TYPES:
        return "has to be a field of the type string, number or integer, and not nullable"
    if name not in input_schema.get("required", []) and not _has_default(fields[name]):
        return "may be left out; the field has to be required, or to have a default"
    return ""


def _has_default(schema: Schema) -> bool:
    """One that can stand in a workflow id."""
    default = schema.get("default")
    return isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""


def _defaults_in(recipe: str | None, input_schema: Schema) -> dict[str, Any] | None:
    """For the recipe's fields that may be left out."""
    fields, required = input_schema.get("properties", {}), input_schema.get("required", [])
    try:
        names = [name for name in placeholders_in(recipe or "") if name in fields and name not in required]
    except ValueError:
        return None
    return {name: fields[name]["default"] for name in names if _has_default(fields[name])} or None


def _title(declared: InputDeclaration | OutputDeclaration) -> str | None:
    """The type's name, if it is a name."""
    return None if declared.type in ("object", "any") else declared.type


def _takes_input(declared: InputDeclaration) -> bool:
    return (declared.type or "").lower() != NO_INPUT and bool(declared.type or declared.fields)


def _passed_as(declared: InputDeclaration | None) -> str | None:
    if declared is None or not _takes_input(declared):
        return "none"
    return "positional" if declared.positional else None


def _description(declared: WorkflowDeclaration) -> str:
    """The purpose, and what comes of it."""
    output = declared.output
    if output is None or not (output.type or output.description):
        return declared.purpose
    returns = f"Returns {output.type}" if output.type else "Returns"
    told = f"{returns}: {output.description}" if output.description else returns
    return f"{declared.purpose}\n\n{told}" + ("" if told.endswith(".") else ".")


def _first_reason(error: ValidationError) -> str:
    one = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, one["loc"]))
    return f"{where}: {message_of(one)}" if where else message_of(one)


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _snake_case(policy: str | None) -> str | None:
    """`RejectDuplicate` as `reject_duplicate`."""
    if policy is None:
        return None
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in policy).removeprefix("_")
