"""Apps of the tools of MCP servers, as clients that show cards get them: at addresses of this product, with
the HTML that a curator has accepted."""

import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from catalogue.exposure import current_catalogue
from catalogue.models import ServerFeature, Workflow
from connectors.formats.json import as_object
from connectors.formats.mcp_apps import MIME_TYPES, SCHEME, read_tool_meta
from executions.models import Execution
from executions.models.execution import ExecutionPayload

Apps = Mapping[str, ServerFeature]  # Enabled ones of one source, by the server's own address
TEXT = "text/plain"


def relayed_meta(workflow: Workflow) -> dict[str, Any] | None:
    """Returns the tool's `_meta` for its own app; None without one, except for tools that only apps call."""
    if workflow.app is None:
        return None if workflow.is_for_models else _as_served(workflow.presentation, {})
    return _as_served(workflow.presentation, {workflow.app.upstream_id: workflow.app})


def _as_served(meta: dict[str, Any], apps: Apps) -> dict[str, Any]:
    """With our addresses for the server's. What has the address of an app that is not enabled is left out."""
    served: dict[str, Any] = {}
    for key, value in meta.items():
        if key == "ui":
            if inner := _as_served(value, apps):
                served[key] = inner
        elif isinstance(value, str) and value in apps:
            served[key] = apps[value].served_as
        elif SCHEME not in json.dumps(value):
            served[key] = value
    return served


def describe_app(feature: ServerFeature) -> dict[str, Any]:
    """Returns `_meta` of the resource."""
    return {"ui": feature.definition["ui"]} if "ui" in feature.definition else {}


def read_app(feature: ServerFeature, uri: str) -> types.TextResourceContents | None:
    """Reads the accepted HTML; None if the server has not been listed since it was accepted."""
    if (html := feature.html_of(feature.definition)) is None:
        return None
    mime_type = feature.definition.get("mime_type")
    return types.TextResourceContents(uri=uri, mime_type=mime_type, text=html, _meta=describe_app(feature))


def relay_result(result: types.CallToolResult, execution: Execution, *, by_own_tool: bool) -> None:
    """Adds what the tool's server says to its app, with our addresses, if the client binds the result to that
    tool. May query the database."""
    workflow, apps = execution.workflow, dict[str, ServerFeature]()
    if workflow is not None and workflow.presentation:
        of_sources = current_catalogue().apps.items()
        apps = {address: app for (source, address), app in of_sources if source == workflow.source_id}
        if by_own_tool:
            told = ExecutionPayload.objects.filter(pk=execution.cached_from_id or execution.pk)
            answer = as_object(told.values_list("status_answer", flat=True).first())
            result.meta = _as_served(read_tool_meta(answer.get("_meta")), apps) | (result.meta or {})
    result.content = [_block_as_served(block, apps) for block in result.content]


def _block_as_served(block: types.ContentBlock, apps: Apps) -> types.ContentBlock:
    if isinstance(block, types.ResourceLink) and (app := apps.get(block.uri)) is not None:
        return block.model_copy(update={"uri": app.served_as})
    if not isinstance(block, types.EmbeddedResource):
        return block
    app = apps.get(block.resource.uri)
    accepted = None if app is None else read_app(app, app.served_as)
    return disarm(block) if accepted is None else block.model_copy(update={"resource": accepted})


def disarm(block: types.ContentBlock) -> types.ContentBlock:
    """Makes HTML that no curator has read text, which no client runs."""
    if not isinstance(block, types.EmbeddedResource):
        return block
    held = block.resource
    if not held.uri.lower().startswith(SCHEME) and held.mime_type not in MIME_TYPES:
        return block
    return block.model_copy(update={"resource": held.model_copy(update={"mime_type": TEXT, "meta": None})})
