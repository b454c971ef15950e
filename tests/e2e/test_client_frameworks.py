"""What agents are built with, at the schemas that it stumbles over and for as long as it waits by default.

No model takes part: the tools are called as the frameworks call them.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.testing import free_port
from tests.e2e.clients.workflows import ECHOING, LATE_ANSWER, LONG_RUN, WORKFLOWS
from tests.e2e.node_tools import FOLDER, node
from tests.e2e.product import Product, Rest, environment, place_for_one, started, wait_until
from tests.processes import ROOT, running

__all__ = ["node"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PATIENCE_SECONDS = 60
INLINE_WAIT_SECONDS = 1
SCRIPTS = Path("tests/e2e/clients")
BUILT_IN = ("list_workflows", "list_executions")
"""Those whose arguments are all optional."""
Calls = Sequence[tuple[str, dict[str, Any]]]
EVERY_CALL: Calls = [
    *((fixture.name, fixture.given) for fixture in ECHOING),
    *((name, {}) for name in BUILT_IN),
]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One whose agents see the workflows of `tests/e2e/clients`, and whose calls soon get a handle."""
    folder = tmp_path_factory.mktemp("frameworks")
    engine = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.e2e.clients.engine", engine]
    with (
        place_for_one(folder / "data") as place,
        running(command, answers_at=f"{engine}/healthz", log=folder / "engine.log"),
        started(place | {"CATALOGUE_INLINE_WAIT": str(INLINE_WAIT_SECONDS)}) as product,
    ):
        product.wait_until_up()
        rest = Rest(product, product.manage("create_mcp_token", "curator", "--scope", "catalogue:admin"))
        rest.post("/sources/", name="schemas", kind="simplified", config={"base_url": engine}, credentials={})
        listed = lambda: rest.get("/workflows/", source="schemas")["results"]  # noqa: E731
        wait_until(lambda: len(listed()) == len(WORKFLOWS), PATIENCE_SECONDS, product.told)
        rest.post("/workflows/enable/", source="schemas", all=True)
        of_schemas = {"subject": "source", "syntax": "glob", "pattern": "schemas"}
        rest.post("/toolsets/", slug="portable", portable=True, rules=[of_schemas])
        rest.post("/toolsets/", slug="hasty", inline_wait_seconds=4, rules=[of_schemas])
        yield product


def run(product: Product, program: Sequence[str | Path], calls: Calls, **asked: Any) -> dict[str, Any]:
    """What a client tells that lists the tools and calls some."""
    wanted = {"url": f"{product.url}/mcp", "token": product.token, "calls": calls} | asked
    outcome = subprocess.run(
        program,
        cwd=ROOT,
        env=environment({}),
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert outcome.returncode == 0, f"{outcome.stdout[-1000:]}{outcome.stderr[-4000:]}"
    told: dict[str, Any] = json.loads(outcome.stdout)
    return told


def check_answers(texts: Sequence[str]) -> None:
    """That every workflow had the arguments that the client was given, and every built-in tool answered."""
    *echoes, workflows, executions = texts
    for fixture, text in zip(ECHOING, echoes, strict=True):
        assert json.loads(text) == {"received": fixture.given}, f"{fixture.name}: {text}"
    assert "workflows" in json.loads(workflows), workflows
    assert "executions" in json.loads(executions), executions


def test_the_official_typescript_client_of_2025_lists_and_calls_everything(node, product):
    """A2.1, A2.2: it refuses a whole list for one schema that it does not understand."""
    told = run(product, [node, FOLDER / "client.mjs"], EVERY_CALL, release="v1")
    assert set(WORKFLOWS) <= {tool["name"] for tool in told["tools"]}
    check_answers([call["content"][0]["text"] for call in told["calls"]])


def test_langchain_in_typescript_lists_and_calls_everything(node, product):
    """A2.1, A2.2"""
    told = run(product, [node, FOLDER / "langchain.mjs"], EVERY_CALL)
    assert set(WORKFLOWS) <= set(told["tools"])
    check_answers([call["text"] for call in told["calls"]])


def test_mcpadapt_lists_and_calls_everything(product, python_of_2025):
    """A2.1, A2.2: which smolagents and CrewAI take their tools with."""
    told = run(product, [python_of_2025, SCRIPTS / "mcpadapt_client.py"], EVERY_CALL)
    assert set(WORKFLOWS) <= set(told["tools"])
    check_answers([call["text"] for call in told["calls"]])


def test_openai_agents_in_strict_mode_lists_and_calls_everything(product, python_of_2025):
    """A2.1, A2.2: strict mode sends every argument that a tool has; some values have to mean nothing."""
    told = run(product, [python_of_2025, SCRIPTS / "openai_agents_client.py"], EVERY_CALL)
    assert set(WORKFLOWS) <= set(told["tools"])
    assert {"optional_arguments", *BUILT_IN} <= set(told["strict"])
    sent = {name: call["sent"] for (name, _), call in zip(EVERY_CALL, told["calls"], strict=True)}
    assert sent["list_executions"].keys() > {"state", "tool", "cursor"}
    *echoes, workflows, executions = (json.loads(call["text"]) for call in told["calls"])
    for fixture, answer in zip(ECHOING, echoes, strict=True):
        assert answer["received"].items() >= fixture.given.items(), fixture.name
    assert workflows["workflows"] and executions["executions"], "what had to be sent narrows no list"


def test_openai_agents_in_strict_mode_takes_every_tool_of_a_portable_toolset(product, python_of_2025):
    """A2.1, A2.2: what it sends for arguments that are left out does not reach the workflow."""
    calls = [
        (fixture.name, fixture.given if fixture.portable is None else fixture.portable) for fixture in ECHOING
    ]
    program = [python_of_2025, SCRIPTS / "openai_agents_client.py"]
    told = run(product, program, [*calls, *EVERY_CALL[-2:]], url=f"{product.url}/mcp/portable")
    assert WORKFLOWS.keys() <= set(told["tools"]) == set(told["strict"])
    sent = {name: call["sent"] for (name, _), call in zip(calls, told["calls"], strict=False)}
    assert None in sent["optional_arguments"].values() and None in sent["root_one_of"].values()
    check_answers([call["text"] for call in told["calls"]])


LONG = (LONG_RUN.name, {"seconds": 3})


def test_the_official_typescript_client_gets_a_handle_in_spite_of_progress(node, product):
    """A7.3, A8.3: its timer goes on whatever it hears of progress, and then the call is an error."""
    told = run(product, [node, FOLDER / "client.mjs"], [LONG], release="v1", progress=True)
    (handle,) = (call["structuredContent"] for call in told["calls"])
    assert handle["state"] == "running"
    asking = (handle["next"]["tool"], handle["next"]["arguments"])
    told = run(product, [node, FOLDER / "client.mjs"], [asking], release="v1", progress=True)
    (ended,) = (call["structuredContent"] for call in told["calls"])
    assert ended["output"] == {"received": LONG[1]}


def test_openai_agents_gets_the_results_of_runs_that_are_longer_than_it_waits(product, python_of_2025):
    """A8.3, A8.4: it gives up after 5 s; what it is told to call next is answered before that too."""
    token = product.manage("create_mcp_token", "openai-agents", "--inline-wait", "3")
    program, given = [python_of_2025, SCRIPTS / "openai_agents_client.py"], {"seconds": 7}
    told = run(product, program, [(long.name, given) for long in (LONG_RUN, LATE_ANSWER)], token=token)
    for call in told["calls"]:
        handle, *later = [call["text"], *call["then"]]
        assert "It goes on and its result is kept" in handle
        assert [int(asked) for asked in re.findall(r'"wait_seconds": (\d+)', handle)] == [3]
        assert later, "a handle proposes how to go on"
        assert json.loads(later[-1])["output"] == {"received": given}


def test_the_python_client_of_2025_that_gives_up_after_5_s_gets_a_handle_over_stdio(product, python_of_2025):
    """A8.4, E8: there is no token to set an inline wait for, so a toolset has it."""
    given = {"seconds": 12}
    server = [sys.executable, "manage.py", "mcp_stdio", "--toolset", "hasty"]
    program = [python_of_2025, SCRIPTS / "stdio_client.py"]
    variables = environment(product.variables)
    told = run(product, program, [(LATE_ANSWER.name, given)], server=server, environment=variables)
    handle, *others, ended = [told["calls"][0]["text"], *told["calls"][0]["then"]]
    assert '"wait_seconds": 4' in handle
    assert all("next" in json.loads(text) for text in others)
    assert json.loads(ended)["output"] == {"received": given}
