"""Defines a workflow of the engine, and its errors."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import jsonschema_rs

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject

AUTHOR = "Example Engine"
VERSION = "1.0.0"
MAX_MESSAGE_LENGTH = 300


class WorkflowError(Exception):
    """A workflow cannot do what its input asks for; the message says what to change."""


class ExecutionType(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True)
class Workflow:
    """A workflow's public description and the function that does its work.

    `execute` gets the validated input and the run's progress. A plain function runs in a thread; a
    coroutine function runs on the event loop and must only wait there. It may run again from the start
    after the engine was interrupted, so it must have no effect but its result.
    """

    id: str
    name: str
    description: str
    category: str
    execution_type: ExecutionType
    tags: tuple[str, ...]
    input_schema: JsonObject
    output_schema: JsonObject
    example: JsonObject
    execute: Callable[[JsonObject, Progress], Any]

    def listed(self) -> JsonObject:
        return {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "category": self.category,
            "version": VERSION,
            "inputSchema": self.input_schema,
            "executionType": self.execution_type,
            "metadata": {
                "tags": list(self.tags),
                "author": AUTHOR,
                "outputSchema": self.output_schema,
                "exampleInput": self.example,
                # What `execute` promises, in MCP's words.
                "annotations": {"readOnlyHint": True, "openWorldHint": False},
            },
        }

    def problems_with(self, given: JsonObject) -> list[JsonObject]:
        """Returns where and how an input departs from the input schema."""
        return [
            {"path": pointer(error.instance_path), "message": shorten(error.message)}
            for error in self._validator.iter_errors(given)
        ]

    @cached_property
    def _validator(self) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(self.input_schema, validate_formats=True)


def shorten(message: str) -> str:
    """A message that quotes a long value, without its middle: what is wrong stands at the end."""
    half = MAX_MESSAGE_LENGTH // 2
    return message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:half]}…{message[-half:]}"


def pointer(path: list[str | int]) -> str:
    """The JSON Pointer (RFC 6901) of a path of keys and positions."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
