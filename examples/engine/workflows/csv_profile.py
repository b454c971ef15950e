"""Describes the columns of a CSV file."""

import math
import re
from collections.abc import Callable
from datetime import date

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.csv_reading import DELIMITERS, read_columns
from examples.engine.workflows.definition import ExecutionType, Workflow
from examples.engine.workflows.schema import array, integer, nullable, number, record, text

EXAMPLES = 3

# A leading zero marks a code, such as a postcode, which is text.
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
BOOLEANS = {"true", "false", "yes", "no"}


def profile_file(given: JsonObject, progress: Progress) -> JsonObject:
    columns = read_columns(given["csv"], given.get("delimiter"), progress)
    profiles: list[JsonObject] = []
    for name, values in columns.items():
        progress.report(50 + 50 * len(profiles) / len(columns), f"Profiling column {name}")
        profiles.append(profile_column(name, values))
    return {
        "rows": max(map(len, columns.values())),
        "columns": len(columns),
        "column_profiles": profiles,
    }


def profile_column(name: str, values: list[str]) -> JsonObject:
    filled = [stripped for value in values if (stripped := value.strip())]
    distinct = dict.fromkeys(filled)
    kind = infer_type(distinct)
    return {
        "name": name,
        "type": kind,
        "non_empty": len(filled),
        "empty": len(values) - len(filled),
        "distinct": len(distinct),
        **measure(kind, filled),
        "examples": list(distinct)[:EXAMPLES],
    }


def infer_type(distinct: dict[str, None]) -> str:
    """The narrowest type that every value has."""
    if not distinct:
        return "empty"
    return next((kind for kind, fits in TYPES.items() if all(map(fits, distinct))), "text")


def measure(kind: str, filled: list[str]) -> JsonObject:
    if kind == "date":
        return {"min": min(filled), "max": max(filled), "mean": None}
    if kind not in {"integer", "number"}:
        return {"min": None, "max": None, "mean": None}
    numbers: list[int] | list[float] = [*map(int, filled)] if kind == "integer" else [*map(float, filled)]
    return {"min": min(numbers), "max": max(numbers), "mean": mean(numbers)}


def mean(numbers: list[int] | list[float]) -> float:
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:
        return math.fsum(value / len(numbers) for value in numbers)


def is_number(value: str) -> bool:
    return NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


def is_date(value: str) -> bool:
    if not DATE.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


TYPES: dict[str, Callable[[str], bool]] = {
    "integer": lambda value: INTEGER.fullmatch(value) is not None,
    "number": is_number,
    "boolean": lambda value: value.lower() in BOOLEANS,
    "date": is_date,
}

EXTREME = {"type": ["number", "string", "null"]}

WORKFLOW = Workflow(
    id="1002",
    name="csv_profile",
    description=(
        "Profiles a CSV file: finds each column's type, how many values are filled in, how many are "
        "different, and their range and mean. Use it to understand an unknown file or to check an export "
        "before importing it. The first line must be a header with distinct names; a line with another "
        "number of fields than the header fails the run with the line's number. Returns the number of rows "
        "and columns and one profile per column."
    ),
    category="Data",
    execution_type=ExecutionType.ASYNC,
    tags=("csv", "data quality", "profiling"),
    input_schema=record(
        "The file to profile.",
        {
            "csv": text("The content of the CSV file, header line included."),
            "delimiter": text("What separates fields. Guessed from the header if left out.", enum=DELIMITERS),
        },
        optional=["delimiter"],
    ),
    output_schema=record(
        "The profile of the file.",
        {
            "rows": integer("How many rows of data the file has, without header and empty lines."),
            "columns": integer("How many columns the file has."),
            "column_profiles": array(
                "One profile per column, in the file's order.",
                record(
                    "The profile of a column.",
                    {
                        "name": text("The column's name in the header."),
                        "type": text("The type every filled-in value has.", enum=[*TYPES, "text", "empty"]),
                        "non_empty": integer("How many values are filled in."),
                        "empty": integer("How many values are empty or blank."),
                        "distinct": integer("How many different values are filled in."),
                        "min": {**EXTREME, "description": "Smallest number or earliest date."},
                        "max": {**EXTREME, "description": "Largest number or latest date."},
                        "mean": nullable(number("Mean of a column of numbers.")),
                        "examples": array(
                            f"The first {EXAMPLES} different values.", text("A value as it is in the file.")
                        ),
                    },
                ),
            ),
        },
    ),
    example={"csv": "id,name,joined,score\n1,Ada,2024-03-01,9.5\n2,Grace,2025-11-30,\n3,Ada,2026-01-15,7"},
    execute=profile_file,
)
