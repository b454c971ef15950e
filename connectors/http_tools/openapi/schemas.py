"""The schemas of a document as JSON Schema 2020-12 with definitions of their own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from connectors.http_tools.openapi.document import Document
from connectors.http_tools.openapi.refusals import NoTool
from connectors.http_tools.openapi.sayable import without_null
from connectors.http_tools.openapi.schema_keywords import Reading, convert

MAX_PARTS = 5_000
"""Of one schema with all definitions that it needs; the catalogue accepts no more."""
LONGEST_NAME = 60

Schema = dict[str, Any]
Direction = Literal["request", "response"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A schema with references to definitions by the pointers of these."""

    schema: Any
    needs: frozenset[str]
    """Pointers of the definitions that it refers to itself."""
    parts: int


@dataclass(slots=True)
class Schemas:
    """Converts a document's schemas, each definition once for all operations."""

    document: Document
    direction: Direction
    """Requests have no read-only properties, responses none that are write-only."""
    usable_pattern: Callable[[str], bool]
    _definitions: dict[str, Converted | NoTool] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def convert(self, raw: Any, pointer: str) -> Converted:
        """One schema, references kept. Raises NoTool."""
        reading = Reading(self.document, self.direction, self.usable_pattern, self._name_of)
        schema = convert(raw, pointer, reading)
        return Converted(schema, frozenset(reading.needs), reading.parts)

    def convert_text(self, raw: Any, pointer: str) -> Converted:
        """The same for what is written as a text, which null cannot be. Raises NoTool."""
        converted = self.convert(raw, pointer)
        if isinstance(converted.schema, dict) and "$ref" in converted.schema:
            # The definition is shared with JSON bodies; where it allows null, this argument has a copy.
            target = self.convert(*self.document.object_at(raw, pointer))
            if (plain := without_null(target.schema)) == target.schema:
                return converted
            beside = {key: value for key, value in converted.schema.items() if key != "$ref"}
            return Converted(plain | beside, target.needs, target.parts)
        return Converted(without_null(converted.schema), converted.needs, converted.parts)

    def definitions_for(self, needs: frozenset[str], *, parts: int) -> Schema:
        """`$defs` with everything that can be reached. `parts`: how many there are besides. Raises NoTool."""
        found: Schema = {}
        waiting = sorted(needs, reverse=True)
        while waiting:
            pointer = waiting.pop()
            if (name := self._name_of(pointer)) in found:
                continue
            definition = self._definition(pointer)
            found[name] = definition.schema
            parts += definition.parts
            if parts > MAX_PARTS:
                raise NoTool(
                    f"Its schema has more than {MAX_PARTS:,} parts, everything that it refers to included."
                )
            waiting += sorted(definition.needs, reverse=True)
        return found

    def _definition(self, pointer: str) -> Converted:
        if pointer not in self._definitions:
            try:
                value, at = self.document.follow(f"#{quote(pointer)}", pointer)
                self._definitions[pointer] = self.convert(value, at)
            except NoTool as refusal:
                self._definitions[pointer] = refusal
        definition = self._definitions[pointer]
        if isinstance(definition, NoTool):
            raise definition
        return definition

    def _name_of(self, pointer: str) -> str:
        """The same for all operations of the document."""
        if pointer not in self._names:
            last = pointer.rpartition("/")[2]
            plain = (
                "".join(char if char.isascii() and char.isalnum() else "_" for char in last)[:LONGEST_NAME]
                or "_"
            )
            name, number = plain, 2
            while name in self._taken:
                name, number = f"{plain}_{number}", number + 1
            self._taken.add(name)
            self._names[pointer] = name
        return self._names[pointer]
