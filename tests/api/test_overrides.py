"""What a curator says and sets through /api/workflows/<tool name>/"""

import json
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import Revision, Workflow
from catalogue.reconciliation import read_listing, reconcile
from connectors.definitions import WorkflowDefinition
from executions.models import Execution
from tests.api.clients import administrator, agent, problem_paths
from tests.factories import make_discovery_run, make_source, make_workflow
from tests.icons import PNG
from tests.tables import table_row

pytestmark = pytest.mark.django_db


def test_a_curators_words_take_the_place_of_the_engines():
    workflow = make_workflow(tool_name="greet", description="Says hello.")
    before = Revision.current()

    response = administrator().patch(
        "/api/workflows/greet/",
        {
            "title": "Greet",
            "description": "Greets.",
            "tags": ["kind"],
            "timeout_seconds": 5,
            "inline_wait_seconds": 0,
        },
    )

    assert response.status_code == 200
    shown = response.json()
    assert (shown["title"], shown["description"], shown["tags"]) == ("Greet", "Greets.", ["kind"])
    assert (shown["curator"]["timeout_seconds"], shown["curator"]["inline_wait_seconds"]) == (5, 0)
    assert shown["upstream"]["description"] == workflow.description
    assert Revision.current() > before


def test_a_curator_decides_how_calls_behave_and_how_many_there_are_at_a_time():
    """B7, D3: agents are told what holds, and an empty text or null takes it back."""
    make_workflow(tool_name="greet", execution_type="async")
    client = administrator()

    shown = client.patch(
        "/api/workflows/greet/",
        {"execution_type": "sync", "on_disconnect": "cancel", "reattach": False, "max_concurrent": 3},
    ).json()

    assert shown["execution_type"] == "sync" and shown["upstream"]["execution_type"] == "async"
    curator = shown["curator"]
    assert (curator["execution_type"], curator["on_disconnect"]) == ("sync", "cancel")
    assert (curator["reattach"], curator["max_concurrent"]) == (False, 3)
    cleared = client.patch("/api/workflows/greet/", {"execution_type": "", "max_concurrent": None}).json()
    assert cleared["execution_type"] == "async"
    assert (cleared["curator"]["execution_type"], cleared["curator"]["max_concurrent"]) == ("", None)


def test_clearing_an_override_brings_the_engines_word_back():
    make_workflow(tool_name="greet", name="Hello", title_override="Greet", tags=["a"], tags_override=["b"])

    shown = administrator().patch("/api/workflows/greet/", {"title": "", "tags": None}).json()

    assert (shown["title"], shown["tags"]) == ("Hello", ["a"])


def test_a_call_by_a_former_name_is_told_the_present_one():
    """A6.4: as long as no other workflow has that name."""
    make_workflow(tool_name="greet")
    client = administrator()
    for old, new in (("greet", "hello"), ("hello", "salute"), ("salute", "hail")):
        assert client.patch(f"/api/workflows/{old}/", {"tool_name": new}).status_code == 200
    forget_catalogue()
    for former in ("greet", "hello", "salute"):
        told = agent().post("/api/executions/", {"tool": former, "wait_seconds": 0}).json()["detail"]
        assert "It was renamed: call hail instead." in told
    client.patch("/api/workflows/hail/", {"tool_name": "greet"})
    forget_catalogue()
    told = agent().post("/api/executions/", {"tool": "hail", "wait_seconds": 0}).json()["detail"]
    assert "call greet instead" in told


def test_a_former_name_works_for_as_long_as_the_curator_says():
    """Issue 13, 5: it is not listed, nobody else can have it, and afterwards calls are told the new one."""
    make_workflow(tool_name="greet")
    other = make_workflow(tool_name="other")
    client, caller = administrator(), agent()
    shown = client.patch("/api/workflows/greet/", {"tool_name": "hail", "alias_days": 7}).json()
    assert list(shown["curator"]["aliases"]) == ["greet"]
    client.patch("/api/workflows/hail/", {"tool_name": "salute", "alias_days": 7})
    forget_catalogue()
    key = {"Idempotency-Key": "k1"}
    for name in ("greet", "hail", "salute"):
        started = caller.post("/api/executions/", {"tool": name, "wait_seconds": 0}, headers=key)
        assert (started.status_code, started.json()["tool"]) == (202, "salute"), name
        assert started.headers.get("Tool-Renamed-To") == (None if name == "salute" else "salute")
    assert started["Idempotent-Replayed"] == "true"
    assert Execution.objects.count() == 1

    refused = client.patch("/api/workflows/other/", {"tool_name": "greet"})
    assert refused.status_code == 400 and "calls by this name still run salute" in json.dumps(refused.json())
    found = make_tool_name_of_new("greet")
    assert found not in ("greet", other.tool_name)

    ended = client.patch("/api/workflows/salute/", {"alias_days": 0}).json()
    assert ended["curator"]["aliases"] == {}
    forget_catalogue()
    told = caller.post("/api/executions/", {"tool": "greet", "wait_seconds": 0}).json()["detail"]
    assert "It was renamed: call salute instead." in told
    assert client.patch("/api/workflows/other/", {"tool_name": "greet"}).status_code == 200


def test_a_workflow_is_read_by_a_former_name_while_calls_by_it_run():
    """By the rule of these: of what the caller sees, until its time is over. Changes need the new name."""
    later = (timezone.now() + timedelta(days=1)).isoformat()
    ended = (timezone.now() - timedelta(seconds=1)).isoformat()
    make_workflow(tool_name="hail", tool_aliases={"greet": later, "salute": ended})
    make_workflow(tool_name="hidden", tool_aliases={"secret": later}, enabled=False)
    client, caller = administrator(), agent()
    for reader in (client, caller):
        assert reader.get("/api/workflows/greet/").json()["tool_name"] == "hail"
        assert reader.get("/api/workflows/salute/").status_code == 404
    assert client.get("/api/workflows/secret/").json()["tool_name"] == "hidden"
    assert caller.get("/api/workflows/secret/").status_code == 404
    assert client.patch("/api/workflows/greet/", {"title": "x"}).status_code == 404
    assert client.post("/api/workflows/greet/disable/").status_code == 404


def test_a_former_name_stops_working_by_itself_once_its_time_is_over():
    ended = (timezone.now() - timedelta(seconds=1)).isoformat()
    make_workflow(tool_name="hail", former_tool_names=["greet"], tool_aliases={"greet": ended})
    told = agent().post("/api/executions/", {"tool": "greet", "wait_seconds": 0}).json()["detail"]
    assert "It was renamed: call hail instead." in told
    make_workflow(tool_name="other")
    assert administrator().patch("/api/workflows/other/", {"tool_name": "greet"}).status_code == 200


def test_two_renames_at_once_keep_the_names_of_both():
    """A6.4: each has read the row before the other wrote it."""
    make_workflow(tool_name="greet")
    other = make_workflow(tool_name="other")
    first, second = Workflow.objects.get(tool_name="greet"), Workflow.objects.get(tool_name="greet")
    override_workflow(first, tool_name="hail", alias_days=1)
    override_workflow(second, tool_name="salute", alias_days=1)
    stored = Workflow.objects.get(pk=first.pk)
    assert (stored.tool_name, set(stored.live_aliases)) == ("salute", {"greet", "hail"})
    with pytest.raises(ValidationError, match="still run salute"):
        override_workflow(other, tool_name="hail")


def make_tool_name_of_new(name: str) -> str:
    """What a workflow of this name is called that an engine lists for the first time."""
    source = make_source()
    definition = WorkflowDefinition(
        id="new-1", name=name, description="New.", input_schema={"type": "object"}
    )
    reconcile(source, read_listing([definition]), make_discovery_run(source))
    return Workflow.objects.get(source=source).tool_name


def test_a_former_name_tells_nothing_to_those_who_may_not_call_the_workflow():
    """B8"""
    make_workflow(tool_name="greet")
    administrator().patch("/api/workflows/greet/", {"tool_name": "hail"})
    administrator().post("/api/workflows/hail/disable/")
    forget_catalogue()
    told = agent().post("/api/executions/", {"tool": "greet", "wait_seconds": 0}).json()["detail"]
    assert "hail" not in told


IMPOSSIBLE_OVERRIDES = [
    ({"tool_name": "taken"}, "/tool_name"),
    ({"tool_name": "has spaces"}, "/tool_name"),
    ({"tool_name": "x" * 65}, "/tool_name"),
    ({"title": "x" * 256}, "/title"),
    ({"title": "a\x00b"}, "/title"),
    ({"tags": "text"}, "/tags"),
    ({"tags": [{"a": 1}]}, "/tags/0"),
    ({"timeout_seconds": 0}, "/timeout_seconds"),
    ({"timeout_seconds": 10**30}, "/timeout_seconds"),
    ({"inline_wait_seconds": -1}, "/inline_wait_seconds"),
    ({"max_concurrent": 0}, "/max_concurrent"),
    ({"max_concurrent": 10**30}, "/max_concurrent"),
    ({"execution_type": "sometimes"}, "/execution_type"),
    ({"on_disconnect": "sulk"}, "/on_disconnect"),
    ({"on_disconnect": ""}, "/on_disconnect"),
    ({"reattach": None}, "/reattach"),
    ({"enabled": True}, "/enabled"),
    ({"read_only_hint": "perhaps"}, "/read_only_hint"),
    ({"read_only_hint": True, "destructive_hint": True}, "/destructive_hint"),
    ({"icon": "http://example.com/icon.png"}, "/icon"),
    ({"icon": "javascript:alert(1)"}, "/icon"),
    ({"icon": "data:image/svg+xml;base64,PHN2Zy8+"}, "/icon"),
    ({"icon": "data:image/png;base64,iVBORw0"}, "/icon"),
    ({"icon": "data:image/png;base64," + "A" * 20_000}, "/icon"),
    ({"icon": "https://user:secret@example.com/icon.png"}, "/icon"),
    ({"icon": "https:///icon.png"}, "/icon"),
    ({"icon": "https://example.com/a b.png"}, "/icon"),
    ({"icon": "https://[::1/icon.png"}, "/icon"),
    ({"icon": "https://example.com/" + "x" * 2_000}, "/icon"),
    ({"icon": None}, "/icon"),
    ({"offered_as_prompt": None}, "/offered_as_prompt"),
    ({"only_in_toolsets": None}, "/only_in_toolsets"),
    ({"cache_seconds": -1}, "/cache_seconds"),
    ({"cache_seconds": 2_592_001}, "/cache_seconds"),
    ({"name": "upstream's"}, "/name"),
]


def test_overrides_that_cannot_be_are_refused_by_field(subtests):
    """B4, B5"""
    make_workflow(tool_name="greet")
    make_workflow(tool_name="taken")
    client = administrator()
    for change, path in IMPOSSIBLE_OVERRIDES:
        with table_row(subtests, str(change)[:80]):
            response = client.patch("/api/workflows/greet/", change)

            assert response.status_code == 400
            assert (problem_paths(response), response.json()["kind"]) == ([path], "validation")


def test_a_curator_decides_what_clients_believe_a_workflow_does():
    """A3.1: hints that the curator gives stand, the engine's fill the gaps, and null takes them back."""
    make_workflow(tool_name="report", hints={"readOnlyHint": False, "openWorldHint": True})
    client = administrator()

    shown = client.patch("/api/workflows/report/", {"read_only_hint": True, "idempotent_hint": True}).json()

    assert shown["hints"] == {"readOnlyHint": True, "openWorldHint": True, "idempotentHint": True}
    assert (shown["curator"]["read_only_hint"], shown["curator"]["open_world_hint"]) == (True, None)
    assert shown["upstream"]["hints"] == {"readOnlyHint": False, "openWorldHint": True}
    cleared = client.patch("/api/workflows/report/", {"read_only_hint": None, "idempotent_hint": None}).json()
    assert cleared["hints"] == {"readOnlyHint": False, "openWorldHint": True}


@pytest.mark.parametrize(
    ("engines", "curators", "shown"),
    [
        ({"readOnlyHint": True}, {"destructive_hint": True}, (False, True)),
        ({"destructiveHint": True}, {"read_only_hint": True}, (True, False)),
        ({"readOnlyHint": True, "destructiveHint": True}, {}, (False, True)),
        ({"readOnlyHint": True, "destructiveHint": True}, {"destructive_hint": False}, (True, False)),
    ],
)
def test_no_workflow_is_called_read_only_and_destructive_at_once(engines, curators, shown):
    """B8: the curator's word stands; where an engine contradicts itself, clients had better ask."""
    make_workflow(tool_name="report", hints=engines, **curators)

    hints = administrator().get("/api/workflows/report/").json()["hints"]

    assert (hints["readOnlyHint"], hints["destructiveHint"]) == shown


@pytest.mark.parametrize("icon", [PNG, "https://example.com/icons/report.svg?v=2"])
def test_a_curators_icon_takes_the_place_of_the_engines(icon):
    """A3.1: and an empty text takes it back."""
    engines = [{"src": "https://engine.example.com/icon.png", "sizes": ["48x48"]}]
    make_workflow(tool_name="report", icons=engines)
    client = administrator()

    shown = client.patch("/api/workflows/report/", {"icon": icon}).json()

    assert (shown["icons"], shown["curator"]["icon"]) == ([{"src": icon}], icon)
    assert shown["upstream"]["icons"] == engines
    assert client.patch("/api/workflows/report/", {"icon": ""}).json()["icons"] == engines


def test_a_curator_offers_prompts_and_lets_results_be_kept():
    """E4: both are off until somebody says so."""
    make_workflow(tool_name="report")
    decisions = {"offered_as_prompt": True, "cache_seconds": 86_400}

    before = administrator().get("/api/workflows/report/").json()
    shown = administrator().patch("/api/workflows/report/", decisions).json()

    assert (before["offered_as_prompt"], before["cache_seconds"]) == (False, None)
    assert (shown["offered_as_prompt"], shown["cache_seconds"]) == (True, 86_400)
