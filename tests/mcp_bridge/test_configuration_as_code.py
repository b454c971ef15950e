"""Configuration as code, as agents see it: what was exported and imported again serves the same tools."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command

from catalogue.configuration import export_catalogue
from catalogue.curation import override_workflow
from catalogue.discovery import refresh_source
from catalogue.imports.tools import read_tool, store_tools
from catalogue.models import Revision, Source, Toolset, Workflow, WorkflowFilter
from catalogue.product_settings import change_settings
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from tests.factories import make_filter, make_toolset
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.test_endpoint import modern

pytestmark = pytest.mark.databases("catalogue.imports.configuration")

ODD = "Two lines,\n  the second: with #, 'quotes' and \"more\"\n\nno: yes\ttab \N{NO-BREAK SPACE}é\u2028 end"
TOOL = {
    "name": "get_order",
    "description": "Reads one order.",
    "api": {"endpoint": "https://api.example.com/orders/{order_id}", "method": "GET"},
    "input_schema": {
        "type": "object",
        "properties": {"z": {"type": "string"}, "order_id": {"type": "string"}},
        "required": ["order_id"],
    },
}


def run(name: str, *args: Any, **options: Any) -> str:
    out = StringIO()
    call_command(name, *args, stdout=out, **options)
    return out.getvalue()


def plan(path: Path, *args: str) -> tuple[str, int]:
    """What the plan says, and how the command exits."""
    out = StringIO()
    try:
        call_command("import_catalogue", str(path), "--plan", *args, stdout=out)
    except SystemExit as end:
        return out.getvalue(), int(end.code or 0)
    return out.getvalue(), 0


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return tmp_path / "catalogue.yaml"


@pytest.fixture
def curated(source: Source) -> Source:
    """A catalogue in which everything that can be decided was decided somewhere."""
    first, second, third, *_ = Workflow.objects.order_by("pk")
    override_workflow(first, tool_name="statistics", title_override="Count", description_override=ODD)
    override_workflow(second, tags_override=["a", "yes"], read_only_hint=True, timeout_seconds=7)
    Workflow.objects.filter(pk=third.pk).update(enabled=False)
    store_tools([read_tool(TOOL)], source="shop", expose=True)
    make_filter("report*", action="exclude", subject="tag", note="Not for agents.")
    make_filter(".*", syntax="regex")
    rules = [first.name, {"pattern": "x", "enabled": False}]
    make_toolset("finance", picked=[second], rules=rules, token_budget=99)
    change_settings({"retry_attempts": 7}, by="a test")
    group = Group.objects.create(name="curators")
    group.permissions.set(Permission.objects.filter(codename__in=["view_source", "change_workflow"]))
    return source


def wipe() -> None:
    AccessToken.objects.update(toolset=None)
    Group.objects.filter(role=None).delete()
    for model in (Source, Toolset, WorkflowFilter):
        model.objects.all().delete()
    change_settings({"retry_attempts": None}, by="a test")


def listings(server: McpServer, token: str) -> list[bytes]:
    """`tools/list` over HTTP as it comes over the wire, of everything and of the toolset."""
    body, headers = modern("tools/list")
    return [
        server.post(body, headers=headers, token=token, toolset=slug).content for slug in (None, "finance")
    ]


def test_export_wipe_and_import_serve_the_same_bytes(curated, mcp_server, exported, monkeypatch):
    """Tools/list over /mcp is byte for byte what it was, before the engine is asked and after."""
    token = create_token(name="agent")[1]
    before = listings(mcp_server, token)
    assert b"statistics" in before[1] and b"get_order" in before[0]
    run("export_catalogue", str(exported))
    assert plan(exported) == ("Nothing differs.\n", 0)
    secret = curated.credentials["api_key"]
    assert secret not in exported.read_text()

    wipe()
    monkeypatch.setenv("CATALOGUE_SECRET_EXAMPLE_API_KEY", secret)
    assert plan(exported)[1] == 2
    assert not Source.objects.exists()
    revision = Revision.current()
    run("import_catalogue", str(exported))

    assert Revision.current() == revision + 1
    assert listings(mcp_server, token) == before
    assert plan(exported) == ("Nothing differs.\n", 0)
    assert export_catalogue() == exported.read_text()
    discovered = refresh_source(Source.objects.get(name="example"))
    assert (discovered.outcome, discovered.added, discovered.updated, discovered.missing) == (
        "succeeded",
        0,
        0,
        0,
    )
    assert listings(mcp_server, token) == before
