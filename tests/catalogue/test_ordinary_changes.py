"""Fifty changes as deployments of an engine bring them, and what of them a curator has to decide."""

import copy
from collections import Counter
from typing import Any

from catalogue.drift import find_differences, is_harmless, kinds_held
from tests.catalogue.test_drift import STATE, a_result, an, in_schema, layer

TEXT = {"type": "string", "description": "What it is for."}


def with_required(name: str, schema: Any) -> dict[str, Any]:
    return {"input_schema": an(name, schema)["input_schema"] | {"required": ["month", name]}}


def without_required(name: str) -> dict[str, Any]:
    return {"input_schema": an(name, None)["input_schema"] | {"required": []}}


def released(version: str, **changed: Any) -> dict[str, Any]:
    return changed | {"version": version}


ADDED = [
    an("page", {"type": "integer", "default": 1}),
    an("note", TEXT),
    an("language", {"type": "string", "enum": ["en", "de"], "default": "en"}),
    an("dry_run", {"type": "boolean", "default": False}),
    an("address/properties/country", TEXT),
    an("lines/items/properties/quantity", {"type": "integer"}),
    in_schema("$defs/currency", {"type": "string", "enum": ["EUR", "USD"]}),
    an("format/enum", ["pdf", "csv", "xlsx"]),
    an("format/enum", ["pdf", "csv", "json", "xml"]),
    an("level/enum", [1, 2, 3]),
    a_result("tax", {"type": "number"}),
    a_result("created_at", {"type": "string", "format": "date-time"}),
    a_result("state/enum", ["paid", "open", "void"]),
    with_required("currency", TEXT),
    {"queries": [STATE, STATE | {"name": "progress"}]},
]
LOOSENED = [
    in_schema("required", []),
    an("month/maxLength", 20),
    an("month/maxLength", None),
    an("copies/maximum", 100),
    an("copies/minimum", 0),
    an("month/pattern", None),
    an("month/type", ["string", "null"]),
    an("copies/type", "number"),
    an("format/enum", None),
    in_schema("additionalProperties", True),
    in_schema("$defs/person/properties/mail/format", None),
    without_required("month"),
]
REWORDED = [
    {"description": "Makes the monthly report of all open orders, and mails it."},
    {"description": "Makes the monthly report of all open order."},
    {"description": "Makes the  monthly report\nof all open orders."},
    {"description": "Creates the monthly report of all open orders."},
    {"upstream_title": "Report of a month"},
    an("month/description", "The month of the report, such as 2026-01."),
    an("month/description", "The month of the report"),
    an("copies/description", "How many copies to print."),
    an("format/description", "The format of the file."),
    an("month/examples", ["2026-01", "2026-12"]),
    a_result("total/description", "Of all orders, with tax."),
]
RELEASED = [
    {"version": "1.4.3"},
    {"version": "1.5.0"},
    {"version": "2.0.0-rc.1"},
    {"version": "2026.11.29"},
    {"version": "1.4.2+build.7"},
    released("1.5.0", upstream_timeout_seconds=600),
    released("1.5.0", **in_schema("required", [])),
]
LABELLED = [
    {"tags": ["finance", "orders", "monthly"]},
    {"tags": ["finance"]},
    {"category": "reports"},
    {"author": "Team Orders"},
    {"icons": [{"src": "https://engine.example.com/new.png"}]},
]
FIFTY = [*ADDED, *LOOSENED, *REWORDED, *RELEASED, *LABELLED]


def test_of_fifty_ordinary_changes_those_with_new_texts_are_held_in_a_few_kinds() -> None:
    """H1, H2: what a kind has in common is accepted in one act."""
    found = [find_differences(layer(), layer(**copy.deepcopy(change))) for change in FIFTY]
    held = [kinds_held(differences) for differences in found if not is_harmless(differences)]
    assert (len(FIFTY), len(held)) == (50, 28)
    assert Counter(kind for kinds in held for kind in kinds).most_common(3) == [
        ("argument-added", 7), ("argument-text", 5), ("description", 3)
    ]  # fmt: skip
    assert all(len(kinds) == 1 for kinds in held)
