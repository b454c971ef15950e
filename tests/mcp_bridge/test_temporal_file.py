"""From a YAML file to a result: declared workflows run at a real Temporal, and the file may change."""

import json
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.utils import timezone
from loguru import logger

from catalogue.connections import close_connectors
from catalogue.discovery import due_sources, refresh_source
from catalogue.models import DiscoveryRun, Source, Workflow
from connectors.background import run_in_background_loop
from mcp_bridge.tokens import create_token
from tests.engines.temporal.server import TASK_QUEUE, TemporalServer
from tests.executions.engines import wait_until
from tests.mcp_bridge.database import in_database

CACHED_AT = "workflow-catalogue/cached-at"
MESSAGE = {"message": {"type": "string", "description": "What to say."}}


class DeclaringFile:
    """A file that declares workflows of the tests' worker."""

    def __init__(self, path: Path, server: TemporalServer) -> None:
        self.path = path
        self.head: dict[str, Any] = {"temporal": {"hostPort": server.address}}

    def write(self, **workflows: dict[str, Any]) -> None:
        declared = {
            name: {"purpose": f"Does {name}.", "taskQueue": TASK_QUEUE} | keys
            for name, keys in workflows.items()
        }
        self.write_text(yaml.safe_dump(self.head | {"workflows": declared}))

    def write_text(self, text: str) -> None:
        """As editors do it: another file takes the place of the old one."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)

    def bring_in(self, *options: str) -> str:
        out = StringIO()
        call_command("import_temporal", str(self.path), "--expose-new", *options, stdout=out, no_color=True)
        return out.getvalue()


@pytest.fixture
def file(tmp_path: Path, temporal_server: TemporalServer) -> Iterator[DeclaringFile]:
    yield DeclaringFile(tmp_path / "workflows.yaml", temporal_server)
    run_in_background_loop(close_connectors())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}", diagnose=False)
    yield lines
    logger.remove(sink)


async def test_a_declared_workflow_runs_and_its_cached_result_answers_the_next_call(file, connect, era):
    """E1, E3, E4, E5: until ClearCache clears it; bad arguments reach no engine."""
    file.head["cache"] = {"enabled": True, "ttl": "1h"}
    file.write(Echo={"input": {"type": "Words", "fields": [MESSAGE]}, "output": {"type": "Words"}})
    told = await in_database(file.bring_in)()
    assert "Echo  added" in told and "Temporal answered; namespace default." in told

    async with connect(mode=era) as client:
        (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name == "Echo"]
        first = await client.call_tool("Echo", {"message": "tea"})
        again = await client.call_tool("Echo", {"message": "tea"})
        refused = await client.call_tool("Echo", {"massage": "tea"})
        cleared = await client.call_tool("ClearCache", {"workflowName": "Echo"})
        anew = await client.call_tool("Echo", {"message": "tea"})

    assert tool.description == "Does Echo.\n\nReturns Words."
    assert tool.input_schema["required"] == ["message"]
    assert first.structured_content == anew.structured_content == {"message": "tea"}
    assert json.loads(again.content[0].text) == {"message": "tea"}
    assert [CACHED_AT in (result.meta or {}) for result in (first, again, anew)] == [False, True, False]
    assert refused.is_error and "/massage: no such argument" in refused.content[0].text
    assert cleared.structured_content == {"success": True, "entriesCleared": 1, "workflow": "Echo"}


def test_a_changed_file_is_taken_over_by_the_next_refresh(file):
    """E10: added, changed and removed workflows."""
    file.write(Echo={}, Later={})
    file.bring_in("--by-path")
    Source.objects.update(change_policy=Source.ChangePolicy.FOLLOW)
    file.write(Echo={"title": "Say it again"}, Fail={})

    run = refresh_source(Source.objects.get())

    assert (run.outcome, run.added, run.updated, run.missing) == ("succeeded", 1, 1, 1)
    assert Workflow.objects.get(name="Echo").title == "Say it again"
    assert set(Workflow.objects.present().values_list("name", flat=True)) == {"Echo", "Fail"}


def test_a_broken_file_keeps_the_last_good_state_and_says_why(file, admin_client, logged):
    """E5, E10: line and key in the log, the admin and REST; a mended file recovers."""
    file.write(Echo={}, Later={})
    file.bring_in("--by-path")
    good = file.path.read_text()
    file.write_text(good.replace("taskQueue", "taskQeue", 1))

    run = refresh_source(Source.objects.get())

    why = "line 6, workflows.Echo.taskQeue: unknown key; did you mean taskQueue?"
    told = f"The file {file.path} cannot be used: {why}"
    assert run.outcome == DiscoveryRun.Outcome.FAILED and run.error == told
    assert Workflow.objects.present().count() == 2
    source = Source.objects.get()
    assert (source.health_state, source.health_message) == ("failing", told)
    assert told in logged[-1] and "the last good list stays" in logged[-1]
    page = admin_client.get(f"/admin/catalogue/source/{source.pk}/change/").content.decode()
    assert why.replace("'", "&#x27;") in page
    token = create_token(name="curator", scopes=["catalogue:admin"])[1]
    answer = admin_client.get("/api/sources/temporal/", headers={"authorization": f"Bearer {token}"})
    assert answer.json()["health"]["message"] == told

    file.write_text(good)
    assert refresh_source(source).outcome == DiscoveryRun.Outcome.SUCCEEDED
    source.refresh_from_db()
    assert (source.health_state, source.failures) == ("ok", 0)


def test_a_changed_file_makes_its_source_due(file):
    """E10: within seconds, long before the next regular refresh."""
    file.write(Echo={})
    file.bring_in("--by-path")
    source = Source.objects.get()
    refresh_source(source)
    Source.objects.update(last_refreshed_at=None)
    source.refresh_from_db()
    assert source.next_refresh_at > timezone.now() and due_sources() == []

    file.write(Echo={}, Later={})

    assert wait_until(due_sources, "the source is due") == [source.pk]
