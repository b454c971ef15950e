"""Adds to the pages of workflows what their tools cost in `tools/list`."""

import json
from typing import Any

from django.contrib import admin
from django.db.models import Value
from django.db.models.functions import Coalesce, Length, NullIf
from django.utils.translation import gettext_lazy
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import ValidationError

from catalogue.admin.extensions import Cell, ToolEntry
from catalogue.descriptions import tokens_for
from catalogue.models import Workflow
from mcp_bridge.tool_lists import serialise_tool, tokens_by_key, workflow_tool


def tool_entry(workflow: Workflow) -> ToolEntry | None:
    """None if the row is invalid."""
    try:
        entry = serialise_tool(workflow_tool(workflow), LATEST_PROTOCOL_VERSION).decode()
    except ValidationError:
        return None
    return ToolEntry(json.loads(entry), len(entry), tokens_for(len(entry)))


def weigh(rows: list[Workflow]) -> None:
    costs = tokens_by_key([row.pk for row in rows])
    for row in rows:
        row.tokens = costs.get(row.pk)  # type: ignore[attr-defined]


@admin.display(description=gettext_lazy("tokens"), ordering="entry_characters")
def tokens(workflow: Any) -> Cell:
    return Cell() if workflow.tokens is None else Cell(f"{workflow.tokens:,}")


def token_orders() -> dict[str, Any]:
    """Sorts by the length of what most of an entry consists of."""
    description = Coalesce(NullIf("description_override", Value("")), "description")
    return {
        "entry_characters": Length(description)
        + Length("tool_name")
        + Length("input_schema")
        + Coalesce(Length("output_schema"), 0)
    }
