"""The workflows that the conformance suite looks for by name, as far as a catalogue of workflows has them.

Those whose answers hold more than JSON are tools of an MCP server: `tests/engines/conformance_server.py`.
Names, arguments and what a result has to contain are the suite's; it says so in each scenario's description.
"""

from dataclasses import dataclass
from typing import Any

from tests.e2e import simplified_engine

CHANGING = "test_changing"
"""Comes and goes when one of the `test_trigger_...` workflows runs; a tool and a prompt."""


def _record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}


@dataclass(frozen=True, kw_only=True)
class Fixture(simplified_engine.Fixture):
    inline_wait_seconds: int | None = None
    """After how long a run becomes a task to clients that take tasks; None for the product's usual time."""
    is_prompt: bool = False
    changes_the_lists: bool = False


_FIXTURES = (
    Fixture(
        name="json_schema_2020_12_tool",
        description="Has a schema with the keywords of JSON Schema 2020-12.",
        input_schema={
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {
                "address": {
                    "$anchor": "addressDef",
                    "type": "object",
                    "properties": {"street": TEXT, "city": TEXT},
                }
            },
            "properties": {
                "name": TEXT,
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": TEXT,
                "email": TEXT,
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": False,
        },
    ),
    Fixture(name="test_logging_tool", description="Would log if the catalogue passed logs on."),
    Fixture(name="test_streaming_elicitation", description="Answers without asking anything."),
    Fixture(
        name="test_trigger_tool_change",
        description="Has a curator change the list of tools.",
        changes_the_lists=True,
    ),
    Fixture(
        name="test_trigger_prompt_change",
        description="Has a curator change the list of prompts.",
        changes_the_lists=True,
    ),
    Fixture(name=CHANGING, description="Comes and goes.", is_prompt=True),
    Fixture(name="test_simple_prompt", description="Needs no arguments.", is_prompt=True),
    Fixture(
        name="test_prompt_with_arguments",
        description="Takes two arguments.",
        input_schema=_record(arg1=TEXT, arg2=TEXT) | {"required": ["arg1", "arg2"]},
        is_prompt=True,
    ),
    Fixture(
        name="greet",
        description="Greets at once.",
        input_schema=_record(name=TEXT),
        answer=lambda given: f"Hello, {given.get('name', 'you')}!",
    ),
    Fixture(
        name="slow_compute",
        description="Takes as many seconds as it is told to.",
        input_schema=_record(seconds={"type": "number"}, label=TEXT),
        answer=lambda given: f"Computed {given.get('label', '')}.",
        is_asynchronous=True,
        seconds=lambda given: float(given.get("seconds", 0)),
        inline_wait_seconds=0,
    ),
    Fixture(
        name="failing_job",
        description="Fails after a second.",
        error="The job failed, as it always does.",
        is_asynchronous=True,
        seconds=lambda _: 1.0,
        inline_wait_seconds=0,
    ),
)
WORKFLOWS = {fixture.name: fixture for fixture in _FIXTURES}
