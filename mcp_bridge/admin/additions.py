"""Adds to the pages of workflows what their tools cost in `tools/list`."""

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import ValidationError

from catalogue.admin.rendering import DASH, pretty_json
from catalogue.admin.workflows import WorkflowAdmin
from catalogue.descriptions import tokens_for
from catalogue.models import Workflow
from mcp_bridge.tool_lists import serialise_tool, tokens_by_key, workflow_tool


def _token_cost(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    entry = _entry_of(workflow)
    return ("In the tool list", f"about {tokens_for(len(entry)):,} tokens" if entry else "left out")


def _show_entry(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    if not (entry := _entry_of(workflow)):
        return ("", "")
    cost = format_html(
        '<p class="mb-3">{} characters in <code>tools/list</code>, about {} tokens. Toolsets in '
        "portable mode show it in a different form.</p>{}",
        f"{len(entry):,}",
        f"{tokens_for(len(entry)):,}",
        pretty_json(json.loads(entry)),
    )
    return ("As agents see it", cost)


def _entry_of(workflow: Workflow) -> str:
    """Empty if the row is invalid."""
    try:
        return serialise_tool(workflow_tool(workflow), LATEST_PROTOCOL_VERSION).decode()
    except ValidationError:
        return ""


def _weigh(rows: list[Workflow]) -> None:
    costs = tokens_by_key([row.pk for row in rows])
    for row in rows:
        row.tokens = costs.get(row.pk)  # type: ignore[attr-defined]


@admin.display(description="tokens")
def tokens(workflow: Any) -> str:
    return DASH if workflow.tokens is None else f"{workflow.tokens:,}"


WorkflowAdmin.further_facts.append(_token_cost)
WorkflowAdmin.further_sections.append(_show_entry)
WorkflowAdmin.prepare_rows.append(_weigh)
WorkflowAdmin.further_columns.append(tokens)
