"""What the page of a workflow tells of its tool: the entry in agents' lists, and what it costs them."""

import json
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import ValidationError

from catalogue.admin.rendering import pretty_json
from catalogue.admin.workflows import WorkflowAdmin
from catalogue.models import Workflow
from catalogue.token_estimates import estimate_tokens
from mcp_bridge.lists.serialised_tools import serialise_tool
from mcp_bridge.lists.tools import workflow_tool


def _tell_of_tokens(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    entry = _entry_of(workflow)
    return ("In a list of tools", f"about {estimate_tokens(entry):,} tokens" if entry else "it is left out")


def _show_entry(request: HttpRequest, workflow: Workflow) -> tuple[str, Any]:
    """Whether agents see it or not: it is what they would get."""
    if not (entry := _entry_of(workflow)):
        return ("", "")
    cost = format_html(
        '<p class="mb-3">{} characters in <code>tools/list</code>, about {} tokens. Toolsets in portable '
        "mode show it in their own way.</p>{}",
        f"{len(entry):,}",
        f"{estimate_tokens(entry):,}",
        pretty_json(json.loads(entry)),
    )
    return ("As agents get it", cost)


def _entry_of(workflow: Workflow) -> str:
    """Empty for a row that holds what MCP does not know."""
    try:
        return serialise_tool(workflow_tool(workflow), LATEST_PROTOCOL_VERSION).decode()
    except ValidationError:
        return ""


WorkflowAdmin.further_facts.append(_tell_of_tokens)
WorkflowAdmin.further_sections.append(_show_entry)
