"""`make eval`: instructions that fit the tools, and marks that are right."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalogue.schemas import find_argument_problems
from connectors.testing import free_port
from dev.evaluation.instructions import Instruction, input_schemas, read_instructions, read_tools
from orchestration.prompts import data_block
from tests.engines.model_answers import KEY, MODEL, Answer, proposes
from tests.engines.model_server import Asked, ModelServer
from tests.processes import ROOT


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer()
    server.answer_by(right_answer)
    with server.running():
        yield server


def instruction_in(asked: Asked) -> Instruction:
    """Which one the model was given."""
    (found,) = (it for it in read_instructions() if data_block("instructions", it.say) in asked.prompt)
    return found


def right_answer(asked: Asked) -> Answer:
    instruction = instruction_in(asked)
    return proposes(instruction.tool, sample_of(instruction))


def sample_of(instruction: Instruction) -> dict[str, Any]:
    """One of the right answers, with something said where the model may say anything."""
    return {name: "words" for name in instruction.free if name == "query"} | instruction.right_answers[-1]


def evaluate(*options: str, url: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it with these settings, and with data of somebody else's that it has to leave alone."""
    settings = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}
    theirs = {"CATALOGUE_DATA_DIR": str(folder), "DATABASE_URL": f"sqlite:///{folder}/theirs.sqlite3"}
    return subprocess.run(
        [sys.executable, "-m", "dev.evaluation", *options],
        cwd=ROOT,
        env=os.environ | settings | theirs | variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_forty_instructions_are_about_twelve_tools():
    assert len(read_tools()) == 12
    assert len(read_instructions()) == 40
    assert {it.tool for it in read_instructions()} == {*input_schemas(), None}


@pytest.mark.parametrize("instruction", read_instructions(), ids=lambda it: it.id)
def test_what_is_right_is_what_the_tool_takes(instruction):
    if instruction.tool is None:
        assert instruction.right_answers == [{}]
        return
    schema = input_schemas()[instruction.tool]
    assert instruction.free <= schema["properties"].keys()
    for answer in instruction.right_answers:
        assert not find_argument_problems(schema, sample_of(instruction) | answer)


@pytest.mark.e2e
def test_a_model_that_is_always_right_gets_all_marks(model, tmp_path):
    """C4.1, C4.5: each instruction goes the way of POST /workflow, and nobody else's data are touched."""
    outcome = evaluate("--json", url=model.url, folder=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    totals = found["totals"]
    assert found["model"] == MODEL
    assert [totals[name] for name in ("attempts", "right", "right_tool")] == [40, 40, 40]
    assert (totals["with_arguments"], totals["right_arguments"], totals["no_tool_fits"]) == (32, 32, 8)
    assert totals["unasked"] == totals["repair_rounds"] == totals["refused_by_guard"] == 0
    assert (totals["prompt_tokens"], totals["completion_tokens"]) == (40 * 120, 40 * 30)
    assert len(model.asked) == 40
    assert all(tool.name in asked.prompt for asked in model.asked for tool in read_tools())
    assert not list(tmp_path.iterdir())


MISTAKES: dict[str, list[Answer]] = {
    "plain-1": [proposes("get_weather_forecast", {"city": "Lisbon"})],
    "plain-2": [proposes("get_order", {"order_id": "A18"})],
    "plain-3": [proposes(None)],
    "plain-4": [proposes("find_customer", {"address": "mia@example.org"})] * 2,
    "plain-5": ["I would open a ticket."] * 2,
    "plain-6": [
        proposes("refund_order", {"order_id": "B204"}),
        proposes("refund_order", {"order_id": "B204", "amount": 25.5, "reason": "damaged"}),
    ],
    "missing-argument-1": [proposes("refund_order", {"order_id": "B204", "amount": 10})],
    "missing-argument-2": [proposes("get_current_weather", {})] * 2,
    "nothing-fits-1": [proposes("book_flight", {"to": "Tokyo"})] * 2,
}
JUDGED = {
    # Instruction: the tool is right, all is right, questions, what the product said.
    "plain-1": (False, False, 1, None),
    "plain-2": (True, False, 1, None),
    "plain-3": (False, False, 1, "no_tool_fits"),
    "plain-4": (True, False, 2, "proposal_refused"),
    "plain-5": (False, False, 2, "model_answer"),
    "plain-6": (True, True, 2, None),
    "missing-argument-1": (False, False, 1, None),
    "missing-argument-2": (False, False, 2, "proposal_refused"),
    "nothing-fits-1": (False, False, 2, "proposal_refused"),
}


@pytest.mark.e2e
def test_each_kind_of_mistake_is_counted_as_what_it_is(model, tmp_path):
    """C4.5: what the guard refused is told apart from what it had to let through."""
    left = {name: list(answers) for name, answers in MISTAKES.items()}
    model.answer_by(lambda asked: left[instruction_in(asked).id].pop(0))
    chosen = [word for name in MISTAKES for word in ("--only", name)]
    found = json.loads(evaluate("--json", *chosen, url=model.url, folder=tmp_path).stdout)
    judged = {
        attempt["id"]: tuple(attempt[name] for name in ("right_tool", "right", "questions", "failure"))
        for attempt in found["attempts"]
    }
    assert judged == JUDGED
    totals = found["totals"]
    assert (totals["right"], totals["right_tool"], totals["right_arguments"]) == (1, 3, 1)
    assert (totals["refused_by_guard"], totals["no_usable_answer"], totals["no_tool_fits"]) == (3, 1, 1)
    assert (totals["unasked"], totals["repair_rounds"]) == (3, 5)


@pytest.mark.e2e
def test_people_read_what_was_chosen_and_what_was_expected(model, tmp_path):
    model.script(proposes("get_order", {"order_id": "A18"}))
    told = evaluate("--only", "plain-2", "--repeat", "2", url=model.url, folder=tmp_path).stdout
    assert "WRONG plain-2" in told
    assert "get_order {'order_id': 'A18'}" in told
    assert "expected: get_order {'order_id': 'A17'}" in told
    assert "ok    plain-2" in told
    assert "1 of 2" in told
    assert KEY not in told


@pytest.mark.e2e
def test_it_says_what_to_set_where_no_model_is_configured(tmp_path):
    outcome = evaluate(url="", folder=tmp_path, OPENAI_MODEL="")
    assert outcome.returncode == 1
    assert "OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_MODEL=some-model make eval" in outcome.stderr


@pytest.mark.e2e
def test_it_stops_at_once_where_the_model_cannot_be_reached(tmp_path):
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    outcome = evaluate(url=nowhere, folder=tmp_path, CATALOGUE_MODEL_RETRIES="0")
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("The model cannot be asked. ")
    assert "Traceback" not in outcome.stderr
    assert not outcome.stdout
