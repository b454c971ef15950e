"""examples/tools.yaml against the example engine that it is written for."""

from collections.abc import Iterator

import pytest
import yaml

from connectors.network.policy import allow_http_tool_hosts
from tests.api.clients import administrator
from tests.engines.model_answers import proposes
from tests.orchestration.shop import ask
from tests.processes import ROOT, ExampleEngine

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tools(example_engine: ExampleEngine) -> Iterator[list[str]]:
    """The ids under which the file's tools are stored, with where this engine is and its key."""
    written = (ROOT / "examples" / "tools.yaml").read_text(encoding="utf-8")
    here = written.replace("http://127.0.0.1:8090", example_engine.base_url)
    allow_http_tool_hosts("127.0.0.1")
    stored = administrator().post(
        "/tools", yaml.safe_load(here.replace("example-key", example_engine.api_key))
    )
    assert stored.status_code == 201, stored.content
    yield [tool["id"] for tool in stored.json()["tools"]]
    allow_http_tool_hosts("")


def test_the_example_tools_work_with_the_example_engine(tools, model_server):
    """C1.4: a place in the body, a constant, a key, and an output that is picked from the response."""
    model_server.script(proposes("count_text", {"text": "Hello there."}), proposes("list_runs"))
    counted = ask("How many words has 'Hello there.'?", tools).json()
    assert counted["status"] == "success", counted
    assert counted["http_spec"]["body"] == {"input": {"text": "Hello there."}, "source": "application"}
    execution = administrator().get(f"/api/executions/{counted['execution_id']}/").json()
    assert (execution["output"]["words"], execution["output"]["sentences"]) == (2, 1)

    runs = ask("What has run?", tools).json()["raw_response"]["body"]["runs"]
    # The engine keeps what other tests have run.
    (run,) = (run for run in runs if run["idempotency_key"] == counted["execution_id"])
    looked_at = {"workflow": run["workflow_id"], "run": run["run_id"]}
    model_server.script(proposes("get_run", looked_at))
    assert ask("Look at that run.", tools).json()["raw_response"]["body"]["status"] == "COMPLETED"
