"""Workflows whose schemas are valid, and which clients have been seen to stumble over.

Each answers with what it was started with, so that a test sees what came of the arguments on their way.
"""

from dataclasses import dataclass
from typing import Any

from tests.e2e import simplified_engine
from tests.e2e.simplified_engine import Arguments

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
ORDER = {"properties": {"order": INTEGER}, "required": ["order"]}
CUSTOMER = {"properties": {"customer": TEXT}, "required": ["customer"]}
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
"""As zod writes it."""


def record(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@dataclass(frozen=True, kw_only=True)
class Fixture(simplified_engine.Fixture):
    given: Arguments
    """What a client calls it with."""
    left_out: tuple[str, ...] = ()
    """Arguments that a client may leave out, and some send as null or as an empty text instead."""
    portable: Arguments | None = None
    """The same as `given` where it is written otherwise in a portable toolset."""


def echoing(
    name: str,
    input_schema: dict[str, Any],
    given: Arguments,
    left_out: tuple[str, ...] = (),
    output_schema: dict[str, Any] | None = None,
    portable: Arguments | None = None,
) -> Fixture:
    return Fixture(
        name=name,
        description=f"Answers with its arguments: {name}.",
        input_schema=input_schema,
        output_schema=output_schema,
        answer=lambda arguments: {"received": arguments},
        given=given,
        left_out=left_out,
        portable=portable,
    )


ECHOING = (
    echoing(
        "boolean_properties",
        record("text", text=TEXT, anything=True, nothing=False),
        {"text": "tea", "anything": "at all"},
        left_out=("nothing",),
        output_schema={"type": "object", "properties": {"received": True, "never": False}},
    ),
    echoing(
        "closed_tuple",
        record("pair", pair={"type": "array", "prefixItems": [TEXT, INTEGER], "items": False}),
        {"pair": ["tea", 2]},
    ),
    echoing(
        "nested_closed_tuple",
        record(
            "rows", rows={"type": "array", "items": {"type": "array", "prefixItems": [TEXT], "items": False}}
        ),
        {"rows": [["tea"], ["milk"]]},
    ),
    echoing("root_one_of", {"oneOf": [ORDER, CUSTOMER]}, {"order": 7}),
    echoing("root_any_of", {"type": "object", "anyOf": [ORDER, CUSTOMER]}, {"customer": "Ada"}),
    echoing("empty_schema", {}, {}),
    echoing("without_properties", {"type": "object"}, {}),
    echoing(
        "look_ahead",
        record(
            "password",
            "email",
            password={"type": "string", "pattern": r"^(?=.*[a-z])(?=.*\d)\w+$"},
            email={"type": "string", "pattern": EMAIL},
        ),
        {"password": "tea4two", "email": "ada@example.com"},
    ),
    echoing(
        "recursive",
        record("root", root={"$ref": "#/$defs/node"})
        | {
            "$defs": {
                "node": record(
                    "name", name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/node"}}
                )
            }
        },
        {"root": {"name": "a", "children": [{"name": "b", "children": []}]}},
        portable={"root": {"name": "a", "children": ['{"name": "b", "children": []}']}},
    ),
    echoing(
        "python_keywords",
        record("class", "from", **{"class": TEXT, "from": TEXT, "import": TEXT, "None": TEXT}),
        {"class": "first", "from": "Graz"},
        left_out=("import", "None"),
        portable={"class_": "first", "from_": "Graz"},
    ),
    echoing(
        "dollar_ref",
        record("$ref", **{"$ref": TEXT, "note": TEXT}),
        {"$ref": "main"},
        left_out=("note",),
        portable={"ref": "main"},
    ),
    echoing(
        "optional_arguments",
        record(
            "text",
            text=TEXT,
            note=TEXT,
            limit=INTEGER | {"default": 10},
            ratio={"type": "number"},
            loud={"type": "boolean"},
            tags={"type": "array", "items": TEXT},
            mode={"type": "string", "enum": ["fast", "careful"]},
            options=record(depth=INTEGER, colour=TEXT),
        ),
        {"text": "tea"},
        left_out=("note", "limit", "ratio", "loud", "tags", "mode", "options"),
    ),
    echoing(
        "nullable_argument",
        record("text", text=TEXT, note={"type": ["string", "null"]}),
        {"text": "tea", "note": None},
    ),
    echoing(
        "unicode_keys",
        record("straße", **{"straße": TEXT, "数量": INTEGER, "prénom usuel": TEXT}),
        {"straße": "Ring", "数量": 2},
        left_out=("prénom usuel",),
        portable={"strae": "Ring", "n": 2},
    ),
)


def long(name: str, description: str, *, is_asynchronous: bool) -> Fixture:
    return Fixture(
        name=name,
        description=description,
        input_schema=record("seconds", seconds={"type": "number"}),
        is_asynchronous=is_asynchronous,
        seconds=lambda arguments: float(arguments["seconds"]),
        answer=lambda arguments: {"received": arguments},
        given={"seconds": 1},
    )


LONG_RUN = long("long_run", "Takes as many seconds as it is told to.", is_asynchronous=True)
LATE_ANSWER = long(
    "late_answer", "Is answered after as many seconds as it is told to.", is_asynchronous=False
)
WORKFLOWS = {fixture.name: fixture for fixture in (*ECHOING, LONG_RUN, LATE_ANSWER)}
