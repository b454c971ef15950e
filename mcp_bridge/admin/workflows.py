"""What the list of workflows tells of them as tools: what each adds to a `tools/list`."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin
from mcp_types import LATEST_PROTOCOL_VERSION

from catalogue.admin.rendering import DASH
from catalogue.admin.workflows import WorkflowAdmin
from catalogue.exposure import confirmed_catalogue
from catalogue.models import Workflow
from catalogue.token_estimates import tokens_for
from mcp_bridge.lists.serialised_tools import serialised_tools
from mcp_bridge.lists.tools import make_of_each


def tokens_by_key(keys: Iterable[int]) -> dict[int, int]:
    """What the tool of each of these workflows costs in a full list; of those alone that can be shown."""
    whole = Workflow.objects.select_related("source").filter(pk__in=keys)
    serialise = partial(serialised_tools.of, version=LATEST_PROTOCOL_VERSION)
    made = make_of_each(serialise, whole, confirmed_catalogue())
    return {workflow.pk: tokens_for(tool.characters) for workflow, tool in made}


def _weigh(rows: list[Workflow]) -> None:
    costs = tokens_by_key([row.pk for row in rows])
    for row in rows:
        row.tokens = costs.get(row.pk)  # type: ignore[attr-defined]


@admin.display(description="tokens")
def tokens(workflow: Any) -> str:
    return DASH if workflow.tokens is None else f"{workflow.tokens:,}"


WorkflowAdmin.prepare_rows.append(_weigh)
WorkflowAdmin.further_columns.append(tokens)
