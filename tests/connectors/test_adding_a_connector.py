"""What docs/adding-a-connector.md says works as it stands there."""

import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError

from connectors.errors import InvalidAnswer
from connectors.protocol import Connector, RunRef, RunSnapshot, RunState
from connectors.registry import connector_class, forget_connectors
from connectors.testing import ConnectorContract, EngineHarness
from tests.catalogue.test_commands import run
from tests.connectors.lathe import WRONG_TOKEN, Lathe, LatheHarness, running_lathe
from tests.connectors.scripted import ScriptedEngine, replies
from tests.packages import declare_package
from tests.processes import ROOT

TEMPLATE = (ROOT / "connectors" / "testing" / "package" / "connector.py.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def connector_of_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[Connector]]:
    """Installed with an entry point of its own."""
    site = tmp_path_factory.mktemp("site")
    (site / "lathe_connector.py").write_text(TEMPLATE)
    declare_package(site, "of-the-page", lathe="lathe_connector:LatheConnector")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield connector_class("lathe")
    forget_connectors()


@pytest.fixture(scope="module")
def lathe() -> Iterator[Lathe]:
    with running_lathe() as running:
        yield running


class HarnessOfThePage(LatheHarness):
    def connector(self) -> Connector:
        return self._connector(self.lathe.port, Lathe.token, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.lathe.port, WRONG_TOKEN, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._connector(port, Lathe.token, 0.5)

    def _connector(self, port: int, token: str, seconds: float) -> Connector:
        settings = {"base_url": f"http://127.0.0.1:{port}", "token": token, "seconds": seconds}
        return self.kind(self.kind.Config.model_validate(settings))


class TestConnectorOfThePage(ConnectorContract):
    @pytest.fixture
    def harness(self, connector_of_the_page: type[Connector], lathe: Lathe) -> EngineHarness:
        return HarnessOfThePage(connector_of_the_page, lathe)


@asynccontextmanager
async def asked_about_a_run(kind: type[Connector], answer: Any) -> AsyncIterator[Awaitable[RunSnapshot]]:
    """A poll of a Lathe server that answers so."""
    async with ScriptedEngine(replies(200, json.dumps(answer))) as engine:
        settings = {"base_url": engine.base_url, "token": Lathe.token}
        connector = kind(kind.Config.model_validate(settings))
        workflow = LatheHarness.lasting.workflow
        yield connector.poll(RunRef(workflow=workflow, run_id="7", key=uuid4()))
        await connector.aclose()


async def test_a_run_of_which_little_is_told_is_followed(connector_of_the_page):
    """B10: one that waits in the engine's queue has not begun."""
    async with asked_about_a_run(connector_of_the_page, {"state": "queued"}) as poll:
        snapshot = await poll
    assert (snapshot.state, snapshot.started_at) == (RunState.RUNNING, None)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        "queued",
        None,
        {"state": "melted"},
        {"state": ["done"]},
        {"state": "done", "started": "yesterday"},
        {"state": "done", "started": 5},
    ],
)
async def test_an_answer_that_is_no_run_is_told_as_the_engines_mistake(connector_of_the_page, answer):
    """B6, B10: as whoever copies the page wants it, and not as an error of Python's."""
    async with asked_about_a_run(connector_of_the_page, answer) as poll:
        with pytest.raises(InvalidAnswer, match="is not a run"):
            await poll


@pytest.mark.e2e
def test_a_new_package_has_a_connector_of_its_name_and_passes_its_tests(tmp_path):
    """B10: with nothing to change but the engine."""
    folder = tmp_path / "package"
    told, _ = run("new_connector", "big_press", "--folder", str(folder))
    assert told.startswith(f"{folder} is a package")
    code = (folder / "src" / "big_press_connector.py").read_text(encoding="utf-8")
    assert 'kind = "big_press"' in code and "class BigPressConnector" in code
    assert "athe" not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    command = told.splitlines()[-1].strip()
    outcome = subprocess.run(
        f"{command} -q -p no:cacheprovider -p no:randomly",
        shell=True,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout[-3000:] + outcome.stderr[-1000:]


def test_the_page_shows_the_connector_that_a_new_package_begins_with():
    """B10: so that both are right together."""
    page = (ROOT / "docs" / "adding-a-connector.md").read_text(encoding="utf-8")
    assert f"```python\n{TEMPLATE}```\n" in page, "show connectors/testing/package/connector.py.txt as it is"


@pytest.mark.parametrize("name", ["Big", "9lives", "a-b", "../up", "prefect", ""])
def test_a_name_that_no_kind_can_have_makes_no_package(name, tmp_path):
    """B10: nor does one that is in use."""
    with pytest.raises(CommandError):
        run("new_connector", name, "--folder", str(tmp_path / "package"))
    assert not (tmp_path / "package").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    """B10: what it holds may be wanted."""
    with pytest.raises(CommandError, match="already exists"):
        run("new_connector", "big_press", "--folder", str(tmp_path))
    assert not any(tmp_path.iterdir())
