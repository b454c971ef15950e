"""The apps of an MCP server's tools, as they are read for review."""

from typing import Any

import pytest

from connectors.definitions import FeatureDefinition, RejectedDefinition, WorkflowDefinition, presentation_of
from connectors.testing import closing
from connectors.upstream_mcp.config import McpConfig
from connectors.upstream_mcp.connector import McpConnector
from tests.engines.hostile_servers import GOOD_TOOL, hostile, initialized, result, server

APP = "ui://clock/app.html"
MIME = "text/html;profile=mcp-app"
HTML = "<!doctype html><p>Now</p>"


def of_app(html: Any = HTML, mime: str = MIME, ui: Any = None, **more: Any) -> Any:
    """Answers `resources/read` with an app."""
    held = {"uri": APP, "mimeType": mime, "text": html} | ({"_meta": {"ui": ui}} if ui else {}) | more
    return lambda message, _: result(message, {"contents": [held]})


async def read(
    meta: dict[str, Any], *, apps: bool = True, **answers: Any
) -> tuple[dict[str, Any], list[FeatureDefinition | RejectedDefinition], dict[str, Any]]:
    """What is kept of a tool's `_meta`, the features, and the capabilities that the server was told of."""
    told = dict[str, Any]()

    def hear(message: Any, _: Any) -> dict[str, Any]:
        told.update(message["params"]["capabilities"])
        answer = initialized(message)
        answer["result"]["capabilities"]["resources"] = {}
        return answer

    answers = {
        "resource": of_app(),
        "resources": lambda message, _: result(message, {"resources": []}),
        "templates": lambda message, _: result(message, {"resourceTemplates": []}),
    } | answers
    tools = {"tools": [GOOD_TOOL | {"_meta": meta}]}
    behaviour = server(initialize=hear, list=lambda m, _: result(m, tools), **answers)
    with hostile(behaviour) as engine:
        async with closing(McpConnector(McpConfig(url=engine.base_url, apps=apps))) as connector:
            (tool,) = [item async for item in connector.discover()]
            features = [item async for item in connector.list_features()]
    assert isinstance(tool, WorkflowDefinition)
    return presentation_of(tool.metadata), features, told


async def test_a_server_is_told_of_apps_and_its_app_is_read_with_what_it_may_do():
    csp = {"connectDomains": ["https://api.example.com", "wss://*.example.com:8443"]}
    ui = {"csp": csp, "permissions": {"camera": {}}, "prefersBorder": True, "domain": "a.example.com"}

    kept, (app,), told = await read({"ui": {"resourceUri": APP}}, resource=of_app(ui=ui))

    assert MIME in told["extensions"]["io.modelcontextprotocol/ui"]["mimeTypes"]
    assert kept == {"ui": {"resourceUri": APP}}
    assert isinstance(app, FeatureDefinition)
    assert (app.id, app.html, app.mime_type, app.ui) == (APP, HTML, MIME, ui)


async def test_without_the_setting_nothing_of_an_app_is_read():
    kept, features, told = await read({"ui": {"resourceUri": APP}}, apps=False)

    assert (kept, features) == ({}, [])
    assert "extensions" not in told


async def test_of_hostile_metadata_only_what_is_known_is_kept():
    hostile_meta = {
        "ui": {"resourceUri": "javascript:alert(1)", "visibility": ["app", "root"], "csp": {"x": ["*"]}},
        "ui/resourceUri": "ui://x/\u202e<script>",
        "io.modelcontextprotocol/tasks": {"a": 1},
        "anthropic/alwaysLoad": "yes",
        "openai/toolInvocation/invoking": "Wait",
        "openai/unseen": "a\u200bb",
        "openai/large": "x" * 6_000,
        **{f"openai/z{number:03}": number for number in range(100)},
        "other": 1,
    }

    kept, features, _ = await read(hostile_meta)

    assert kept["ui"] == {"visibility": ["app"]}
    assert kept["openai/toolInvocation/invoking"] == "Wait"
    assert {key.partition("/")[0] for key in kept} == {"ui", "openai"}
    assert len(kept) <= 51
    assert not {"openai/unseen", "openai/large", "ui/resourceUri"} & kept.keys()
    assert features == []


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "https://*",
        "https://*.com",
        "https://a.example; script-src *",
        "https://a.example 'unsafe-inline'",
        "'self'",
        "data:",
        "javascript:alert(1)",
        "https://user@a.example",
        "https://a.example\nhttps://b.example",
    ],
)
async def test_an_origin_that_would_open_the_policy_is_left_out_and_reported(origin):
    ui = {"csp": {"resourceDomains": [origin, "https://cdn.example.com/"]}, "permissions": {"usb": {}}}

    _, (app, note), _ = await read({"ui": {"resourceUri": APP}}, resource=of_app(ui=ui))

    assert isinstance(app, FeatureDefinition)
    assert app.ui == {"csp": {"resourceDomains": ["https://cdn.example.com"]}}
    assert isinstance(note, RejectedDefinition)
    assert "without these origins" in note.reason


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (of_app(mime="text/html"), "MIME type"),
        (of_app("x" * 2_000_001), "2,000,000 characters"),
        (of_app(""), "no HTML"),
        (of_app("a\0b"), "cannot be stored"),
        (of_app(uri="ui://another"), "no HTML of this address"),
        (lambda m, _: result(m, {"contents": 5}), "no HTML"),
    ],
)
async def test_an_app_that_cannot_be_shown_is_skipped_with_the_reason(answer, complaint):
    _, (skipped,), _ = await read({"ui/resourceUri": APP}, resource=answer)

    assert isinstance(skipped, RejectedDefinition)
    assert skipped.id == APP
    assert complaint in skipped.reason


async def test_a_listed_app_without_a_tool_is_read_too_and_the_entry_tells_what_the_content_does_not():
    entry = {"uri": APP, "name": "clock", "mimeType": MIME, "_meta": {"ui": {"prefersBorder": False}}}

    _, (app,), _ = await read({}, resources=lambda m, _: result(m, {"resources": [entry]}))

    assert isinstance(app, FeatureDefinition)
    assert (app.name, app.html, app.ui) == ("clock", HTML, {"prefersBorder": False})
