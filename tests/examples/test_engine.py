"""The example engine as its clients see it: a real process, spoken to over HTTP."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import jsonschema_rs
import pytest

from connectors.testing import free_port
from examples.engine.clock import now_ms
from examples.engine.progress import Progress
from examples.engine.workflows import WORKFLOWS
from examples.engine.workflows.definition import WorkflowError
from tests import plain_http

KEY = "test-key"
ROOT = Path(__file__).resolve().parents[2]
IDS = {workflow.name: workflow.id for workflow in WORKFLOWS.values()}
DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.02

Json = dict[str, Any]


def until(condition: Callable[[], Any]) -> Any:
    """The condition's first true result, polled for until a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(POLL_SECONDS)
    raise AssertionError("Waited in vain")


@dataclass
class Engine:
    """An engine process and a client of it."""

    process: subprocess.Popen[bytes]
    client: httpx2.Client

    @classmethod
    def launch(cls, database: Path, *options: str) -> "Engine":
        port = free_port()
        command = [sys.executable, "-m", "examples.engine", f"--port={port}", f"--db={database}", *options]
        environment = {**os.environ, "EXAMPLE_ENGINE_API_KEY": KEY}
        with database.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        headers = {"Authorization": f"Api-Key {KEY}"}
        engine = cls(process, plain_http.Client(base_url=f"http://127.0.0.1:{port}", headers=headers))
        until(engine.answers)
        return engine

    def answers(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx2.TransportError:
            return False

    def post_start(self, name: str, given: Json, key: str | None = None) -> httpx2.Response:
        headers = {"Idempotency-Key": key} if key else {}
        body = {"input": given, "source": "application"}
        path = f"/api/v1/service/workflows/{IDS[name]}/start"
        return self.client.post(path, json=body, headers=headers)

    def start(self, name: str, given: Json, key: str | None = None) -> Json:
        response = self.post_start(name, given, key)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def run_path(self, name: str, run_id: str) -> str:
        return f"/api/v1/service/workflows/{IDS[name]}/runs/{run_id}"

    def status(self, name: str, run_id: str) -> Json:
        answer: Json = self.client.get(self.run_path(name, run_id) + "/status").json()
        return answer

    def ended(self, name: str, run_id: str) -> Json:
        def look() -> Json | None:
            status = self.status(name, run_id)
            return status if status["status"] != "RUNNING" else None

        ended: Json = until(look)
        return ended

    def outcome(self, name: str, given: Json) -> Json:
        return self.ended(name, self.start(name, given)["workflow_id"])

    def cancel(self, name: str, run_id: str) -> httpx2.Response:
        return self.client.post(self.run_path(name, run_id) + "/cancel")

    def runs(self, **filters: str | int) -> Json:
        answer: Json = self.client.get("/runs", params=filters).json()
        return answer

    def end(self, signal_number: signal.Signals) -> int:
        self.process.send_signal(signal_number)
        self.client.close()
        return self.process.wait(timeout=DEADLINE_SECONDS)


Launch = Callable[..., Engine]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    running = Engine.launch(tmp_path_factory.mktemp("engine") / "runs.sqlite3")
    yield running
    running.end(signal.SIGTERM)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts engines on the test's own database, and leaves none behind."""
    launched: list[Engine] = []

    def launch_engine(*options: str) -> Engine:
        launched.append(Engine.launch(tmp_path / "runs.sqlite3", *options))
        return launched[-1]

    yield launch_engine
    for left in launched:
        left.end(signal.SIGKILL)


# What the engine lists


def test_listing_describes_every_workflow(engine):
    listed = engine.client.get("/api/v1/service/workflows").json()
    assert [workflow["id"] for workflow in listed] == list(WORKFLOWS)
    for workflow in listed:
        assert workflow["executionType"] in {"sync", "async"}
        assert workflow["inputSchema"]["additionalProperties"] is False
        assert all("description" in field for field in workflow["inputSchema"]["properties"].values())
        assert {"tags", "author", "outputSchema"} <= workflow["metadata"].keys()
        assert len(workflow["description"]) > 100
        assert all(workflow[field] for field in ("name", "category", "version"))


def test_listing_can_be_read_page_by_page(engine):
    seen, path = [], "/api/v1/service/workflows?limit=3"
    while path:
        page = engine.client.get(path).json()
        assert page["total"] == len(WORKFLOWS)
        seen += [workflow["id"] for workflow in page["workflows"]]
        path = page["next"]
    assert seen == list(WORKFLOWS)


def test_negative_page_is_refused(engine):
    assert engine.client.get("/api/v1/service/workflows?limit=-1").status_code == 400


# Running


def test_sync_workflow_answers_with_its_finished_run(engine):
    answer = engine.start("text_statistics", {"text": "One two. Three!"})
    assert answer["status"] == "COMPLETED"
    assert answer["output"]["words"] == 3
    assert answer["error"] is None
    assert answer["create_time"] <= answer["start_time"] <= answer["end_time"]
    assert engine.status("text_statistics", answer["workflow_id"])["output"] == answer["output"]


def test_sync_workflow_that_fails_says_why(engine):
    answer = engine.start("date_range", {"start": "2026-02-02", "end": "2026-02-01"})
    assert answer["status"] == "FAILED"
    assert "before it starts" in answer["error"]


def test_async_workflow_answers_before_its_run_completes(engine):
    answer = engine.start("csv_profile", {"csv": "a,b\n1,x\n"})
    assert answer.keys() == {"correlation_id", "workflow_id"}
    prefix, _, digits = answer["correlation_id"].partition("_")
    assert (prefix, len(digits)) == (IDS["csv_profile"], 32)
    status = engine.ended("csv_profile", answer["workflow_id"])
    assert (status["status"], status["progress"], status["error"]) == ("COMPLETED", 100, None)
    assert status["workflow_id"] == IDS["csv_profile"]
    assert status["input"]["context"] == {"source": "application", "idempotency_key": None}


def test_ragged_csv_fails_naming_the_line(engine):
    status = engine.outcome("csv_profile", {"csv": "a,b,c\n1,2,3\n\n4,5\n"})
    assert status["status"] == "FAILED"
    assert status["error"] == "Line 4 has 2 fields where the header has 3: '4', '5'"
    assert status["output"] is None


def test_countdown_reports_each_second(engine):
    run_id = engine.start("countdown", {"seconds": 1.5})["workflow_id"]
    seen: dict[str, float] = {}
    while (status := engine.status("countdown", run_id))["status"] == "RUNNING":
        seen[status["progress_message"]] = status["progress"]
        time.sleep(POLL_SECONDS)
    assert seen["1 of 1.5 s"] == 66.7
    assert status["status"] == "COMPLETED"
    assert (status["progress"], status["progress_message"]) == (100, "1.5 of 1.5 s")
    assert status["end_time"] - status["start_time"] >= 1500


def test_countdown_fails_when_told_to(engine):
    status = engine.outcome("countdown", {"seconds": 0.05, "fail": True})
    assert (status["status"], status["output"]) == ("FAILED", None)
    assert status["error"] == "The countdown of 0.05 s ended in the failure asked for."


def test_hundreds_of_countdowns_run_side_by_side(engine):
    def start(number: int) -> str:
        return str(engine.start("countdown", {"seconds": 600}, f"crowd-{number}")["workflow_id"])

    with ThreadPoolExecutor(8) as clients:
        run_ids = list(clients.map(start, range(300)))
        crowd = engine.runs(status="RUNNING", workflow_id=IDS["countdown"])["runs"]
        assert set(run_ids) <= {run["run_id"] for run in crowd}
        cancelled = list(clients.map(lambda run_id: engine.cancel("countdown", run_id).status_code, run_ids))
    assert set(cancelled) == {200}


# Cancelling


def test_cancelled_run_stays_cancelled(engine):
    run_id = engine.start("countdown", {"seconds": 0.3})["workflow_id"]
    response = engine.cancel("countdown", run_id)
    assert (response.status_code, response.json()["status"]) == (200, "CANCELLED")
    until(lambda: now_ms() > response.json()["start_time"] + 400)
    status = engine.status("countdown", run_id)
    assert (status["status"], status["output"]) == ("CANCELLED", None)


def test_calculation_under_way_can_be_cancelled(engine):
    run_id = engine.start("project_forecast", long_forecast())["workflow_id"]
    until(lambda: engine.status("project_forecast", run_id)["progress"])
    assert engine.cancel("project_forecast", run_id).json()["status"] == "CANCELLED"


def test_finished_run_cannot_be_cancelled(engine):
    run_id = engine.start("text_statistics", {"text": "Done."})["workflow_id"]
    response = engine.cancel("text_statistics", run_id)
    assert (response.status_code, response.json()["status"]) == (409, "COMPLETED")
    assert "already ended" in response.json()["error"]


def test_cancel_and_completion_agree_on_one_winner(engine):
    for _ in range(20):
        run_id = engine.start("countdown", {"seconds": 0.004})["workflow_id"]
        won = engine.cancel("countdown", run_id).status_code == 200
        assert engine.ended("countdown", run_id)["status"] == ("CANCELLED" if won else "COMPLETED")


# Idempotency


def test_same_key_returns_the_same_run(engine):
    key = uuid4().hex
    first = engine.start("text_statistics", {"text": "again"}, key)
    assert engine.start("text_statistics", {"text": "again"}, key) == first
    assert engine.runs(idempotency_key=key)["total"] == 1


def test_same_key_starts_one_run_under_concurrent_requests(engine):
    key = uuid4().hex

    def start(_: int) -> str:
        return str(engine.start("countdown", {"seconds": 0.1}, key)["workflow_id"])

    with ThreadPoolExecutor(10) as clients:
        assert len(set(clients.map(start, range(40)))) == 1
    assert engine.runs(idempotency_key=key)["total"] == 1


def test_same_key_with_other_input_conflicts(engine):
    key = uuid4().hex
    run = engine.start("text_statistics", {"text": "one"}, key)
    response = engine.post_start("text_statistics", {"text": "two"}, key)
    assert response.status_code == 409
    assert response.json()["run"]["workflow_id"] == run["workflow_id"]


def test_same_key_serves_each_workflow_separately(engine):
    key = uuid4().hex
    engine.start("text_statistics", {"text": "x"}, key)
    engine.start("text_redact", {"text": "x"}, key)
    assert engine.runs(idempotency_key=key)["total"] == 2


def test_engine_without_idempotency_starts_a_run_every_time(launch):
    forgetful = launch("--no-idempotency")
    run_ids = {forgetful.start("text_statistics", {"text": "x"}, "k")["workflow_id"] for _ in range(2)}
    assert {run["run_id"] for run in forgetful.runs(idempotency_key="k")["runs"]} == run_ids
    assert len(run_ids) == 2


# Refusals


@pytest.mark.parametrize("authorization", [None, "Api-Key wrong", f"Bearer {KEY}", KEY])
@pytest.mark.parametrize("path", ["/runs", "/api/v1/service/workflows", "/nowhere"])
def test_request_without_the_key_is_refused(engine, path, authorization):
    headers = {"Authorization": authorization} if authorization else {}
    response = plain_http.get(engine.client.base_url.join(path), headers=headers)
    assert response.status_code == 401
    assert "key" in response.json()["error"].lower()


def test_health_needs_no_key(engine):
    assert plain_http.get(engine.client.base_url.join("/healthz")).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere"),
        ("GET", "/api/v1/service/workflows/"),
        ("POST", "/api/v1/service/workflows/9999/start"),
        ("GET", "/api/v1/service/workflows/1003/runs/no-such-run/status"),
        ("POST", "/api/v1/service/workflows/1003/runs/no-such-run/cancel"),
    ],
)
def test_what_does_not_exist_is_not_found(engine, method, path):
    response = engine.client.request(method, path)
    assert response.status_code == 404
    assert response.json()["error"]


def test_run_is_not_found_under_another_workflow(engine):
    run_id = engine.start("text_statistics", {"text": "x"})["workflow_id"]
    assert engine.client.get(engine.run_path("countdown", run_id) + "/status").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"input": "text"}',
        b'{"input": {}}',
        b'{"input": {"text": 5}}',
        b'{"input": {"text": "x", "extra": 1}}',
        b'{"input": {"text": "x"}, "source": 5}',
        b'{"input": {"text": "\\ud800"}}',
        b'{"input": {"text": NaN}}',
        b"[" * 100_000,
        b'{"input": {"text": ' + b"[" * 150 + b"]" * 150 + b"}}",
    ],
)
def test_unusable_body_is_refused(engine, body):
    before = engine.runs(workflow_id="1001", limit=0)["total"]
    response = engine.client.post("/api/v1/service/workflows/1001/start", content=body)
    assert response.status_code == 400
    assert response.json()["error"]
    assert isinstance(response.json()["details"], list)
    assert engine.runs(workflow_id="1001", limit=0)["total"] == before


def test_refusal_points_at_the_wrong_field(engine):
    response = engine.post_start("countdown", {"seconds": 100_000})
    assert [problem["path"] for problem in response.json()["details"]] == ["/seconds"]


def test_refusal_of_a_long_value_stays_short(engine):
    response = engine.post_start("text_redact", {"text": "x" * 1_000_001})
    assert "longer than 1000000 characters" in response.json()["details"][0]["message"]
    assert len(response.content) < 1000


def test_oversized_body_is_refused(engine):
    response = engine.post_start("text_statistics", {"text": "x" * (10 * 1024 * 1024)})
    assert response.status_code == 413
    assert "limit" in response.json()["error"]


def test_wrong_method_is_answered_in_json(engine):
    response = engine.client.get("/api/v1/service/workflows/1001/start")
    assert (response.status_code, response.json()) == (405, {"error": "Method Not Allowed"})


# The history


def test_history_lists_every_run(engine):
    keys = {uuid4().hex for _ in range(30)}
    for key in keys:
        engine.start("text_redact", {"text": "x"}, key)
    history = engine.runs()
    assert len(history["runs"]) == history["total"]
    assert keys <= {run["idempotency_key"] for run in history["runs"]}
    newest = history["runs"][-1]
    assert (newest["workflow_name"], newest["status"]) == ("text_redact", "COMPLETED")
    assert (newest["input"], newest["output"]["text"]) == ({"text": "x"}, "x")


def test_history_can_be_filtered_and_paged(engine):
    for _ in range(3):
        engine.start("json_diff", {"before": 1, "after": 2})
    page = engine.runs(workflow_id=IDS["json_diff"], status="COMPLETED", limit=2, offset=1)
    assert len(page["runs"]) == 2
    assert page["total"] >= 3
    assert {run["workflow_name"] for run in page["runs"]} == {"json_diff"}


# Stopping and starting again


@pytest.mark.e2e
def test_killed_engine_resumes_its_runs(launch):
    given = {"seconds": 3, "message": "hello"}
    first = launch()
    countdown = first.start("countdown", given, "kept")["workflow_id"]
    forecast = first.start("project_forecast", {**long_forecast(), "trials": 50_000})["workflow_id"]
    until(lambda: first.status("countdown", countdown)["progress_message"] == "2 of 3 s")
    before = first.status("countdown", countdown)
    first.end(signal.SIGKILL)

    second = launch()
    resumed = second.status("countdown", countdown)
    # It may be over by now, but it has not counted from the start again.
    assert resumed["status"] == "COMPLETED" or resumed["progress_message"] == "2 of 3 s"
    assert second.start("countdown", given, "kept")["workflow_id"] == countdown
    after = second.ended("countdown", countdown)
    assert (after["status"], after["output"]["message"]) == ("COMPLETED", "hello")
    assert after["start_time"] == before["start_time"]
    assert after["end_time"] >= after["start_time"] + 3000
    assert second.ended("project_forecast", forecast)["status"] == "COMPLETED"
    assert second.runs()["total"] == 2


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_engine_stops_quickly_and_quietly(launch, tmp_path, signal_number):
    stopping = launch()
    stopping.start("countdown", {"seconds": 60})
    forecast = stopping.start("project_forecast", long_forecast())["workflow_id"]
    until(lambda: stopping.status("project_forecast", forecast)["progress"])
    assert stopping.end(signal_number) == 0
    assert "Traceback" not in (tmp_path / "runs.log").read_text()


def test_engine_without_a_key_explains_itself():
    environment = {name: value for name, value in os.environ.items() if "EXAMPLE_ENGINE" not in name}
    command = [sys.executable, "-m", "examples.engine"]
    refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "EXAMPLE_ENGINE_API_KEY" in refused.stderr


# What the workflows compute


def long_forecast() -> Json:
    tasks = [{"name": str(n), "optimistic": 1, "likely": 2, "pessimistic": 5} for n in range(5)]
    return {"tasks": tasks, "trials": 2_000_000}


def compute(name: str, **given: Any) -> Json:
    workflow = WORKFLOWS[IDS[name]]
    assert workflow.problems_with(given) == []
    output: Json = workflow.execute(given, Progress(now_ms()))
    jsonschema_rs.validate(workflow.output_schema, output)
    return output


def test_every_example_completes_with_the_output_described(engine):
    for workflow in WORKFLOWS.values():
        example = {**workflow.example, "seconds": 0} if workflow.name == "countdown" else workflow.example
        status = engine.outcome(workflow.name, example)
        assert status["status"] == "COMPLETED", status["error"]
        jsonschema_rs.validate(workflow.output_schema, status["output"], validate_formats=True)


def test_text_statistics_counts_any_script():
    text = "Crème brûlée isn't well-known?\nYes… it IS!\n\nПривет, мир. हिन्दी भाषा।"
    counted = compute("text_statistics", text=text)
    assert (counted["words"], counted["lines"], counted["paragraphs"]) == (11, 4, 2)
    assert counted["sentences"] == 5
    assert counted["most_common_words"][0] == {"word": "brûlée", "count": 1}


def test_text_statistics_of_nothing_are_zero():
    counted = compute("text_statistics", text="")
    assert counted.pop("most_common_words") == []
    assert set(counted.values()) == {0}


def test_text_statistics_ignore_how_accents_were_typed():
    assert compute("text_statistics", text="cafe\u0301 caf\u00e9")["unique_words"] == 1


@pytest.mark.parametrize(
    ("values", "kind", "lowest", "highest", "mean"),
    [
        (["3", "-1", "", "10"], "integer", -1, 10, 4),
        (["1.5", "2e1", "3"], "number", 1.5, 20, 24.5 / 3),
        (["1e308", "1e308"], "number", 1e308, 1e308, 1e308),
        (["yes", "No"], "boolean", None, None, None),
        (["2026-02-28", "2025-12-31"], "date", "2025-12-31", "2026-02-28", None),
        (["2026-02-30"], "text", None, None, None),
        (["00123", "45678"], "text", None, None, None),
        (["1e999"], "text", None, None, None),
        ([" ", ""], "empty", None, None, None),
    ],
)
def test_csv_profile_infers_types(values, kind, lowest, highest, mean):
    content = "name,id\n" + "".join(f"{value},x\n" for value in values)
    profile = compute("csv_profile", csv=content)["column_profiles"][0]
    assert (profile["type"], profile["min"], profile["max"]) == (kind, lowest, highest)
    assert profile["mean"] == (pytest.approx(mean) if mean is not None else None)


def test_csv_profile_reads_quotes_and_other_delimiters():
    profiled = compute("csv_profile", csv='\ufeffid;note\r\n1;"a;b\nc"\r\n2;\r\n')
    assert (profiled["rows"], profiled["columns"]) == (2, 2)
    note = profiled["column_profiles"][1]
    assert (note["examples"], note["empty"]) == (["a;b\nc"], 1)


def test_csv_profile_of_a_header_alone_has_no_rows():
    assert compute("csv_profile", csv="a,b\n")["rows"] == 0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "The file is empty"),
        ("\n\n", "The file is empty"),
        ("a,b,a\n", "columns of the same name: 'a'"),
        ("a,,c\n", "Column 2 has no name"),
        ('a,b\n1,"2\n', "is not valid CSV"),
        ("a,b\n1\n", "Line 2 has 1 field where the header has 2: '1'"),
    ],
)
def test_csv_profile_explains_what_is_wrong(content, complaint):
    with pytest.raises(WorkflowError, match=complaint):
        compute("csv_profile", csv=content)


def test_json_diff_points_at_every_change():
    before = {"a/b": [1, 2, 3], "kept": {"x": 1.0}, "flag": True, "old": None}
    after = {"a/b": [1, 5], "kept": {"x": 1}, "flag": 1, "new~": {}}
    difference = compute("json_diff", before=before, after=after)
    assert difference["changes"] == [
        {"op": "replace", "path": "/a~1b/1", "before": 2, "after": 5},
        {"op": "remove", "path": "/a~1b/2", "before": 3},
        {"op": "replace", "path": "/flag", "before": True, "after": 1},
        {"op": "remove", "path": "/old", "before": None},
        {"op": "add", "path": "/new~0", "after": {}},
    ]
    assert (difference["added"], difference["removed"], difference["replaced"]) == (1, 2, 2)


def test_json_diff_of_equal_documents_is_empty():
    assert compute("json_diff", before={"a": 1, "b": []}, after={"b": [], "a": 1})["identical"] is True


def test_date_range_counts_business_days_across_the_year():
    holidays = ["2027-01-01", "2026-12-25", "2026-12-26", "2030-01-01"]
    counted = compute("date_range", start="2026-12-21", end="2027-01-04", holidays=holidays)
    assert (counted["calendar_days"], counted["weekend_days"], counted["business_days"]) == (15, 4, 9)
    assert counted["holidays_on_weekdays"] == ["2026-12-25", "2027-01-01"]
    weeks = [(week["week"], week["business_days"]) for week in counted["iso_weeks"]]
    assert weeks == [("2026-W52", 4), ("2026-W53", 4), ("2027-W01", 1)]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Mail ada.l+x@mail.example.org, please.", "Mail [email], please."),
        ("IBAN DE89 3704 0044 0532 0130 00 and more", "IBAN [iban] and more"),
        ("gb82west12345698765432", "[iban]"),
        ("IBAN DE88370400440532013000", "IBAN DE88370400440532013000"),
        ("Card 4111 1111 1111 1111.", "Card [card]."),
        ("Order 4111111111111112", "Order 4111111111111112"),
        ("Call +49 (0)30 901820 or (030) 90 18 20 or 555-010-4477", "Call [phone] or [phone] or [phone]"),
        ("On 2026-11-21 it cost 1,234,567.89", "On 2026-11-21 it cost 1,234,567.89"),
    ],
)
def test_text_redact_replaces_personal_data_only(text, redacted):
    assert compute("text_redact", text=text)["text"] == redacted


def test_text_redact_keeps_to_the_kinds_asked_for():
    redacted = compute("text_redact", text="a@b.example, c@d.example, 4111111111111111", kinds=["email"])
    assert redacted["counts"] == {"email": 2}
    assert redacted["text"].endswith("4111111111111111")


def test_project_forecast_is_repeatable_and_plausible():
    tasks = [{"name": "A", "optimistic": 1, "likely": 2, "pessimistic": 6}] * 4
    forecast = compute("project_forecast", tasks=tasks, trials=20_000, deadline=12)
    assert forecast == compute("project_forecast", tasks=tasks, trials=20_000, deadline=12)
    assert forecast["mean"] == pytest.approx(12, abs=0.1)
    assert forecast["percentiles"]["p10"] < forecast["mean"] < forecast["percentiles"]["p95"]
    assert forecast["chance_to_meet_deadline"] == pytest.approx(0.52, abs=0.03)
    assert sum(bar["count"] for bar in forecast["histogram"]) == 20_000


def test_project_forecast_refuses_estimates_in_the_wrong_order():
    with pytest.raises(WorkflowError, match="Task 'A' must have optimistic ≤ likely ≤ pessimistic"):
        compute("project_forecast", tasks=[{"name": "A", "optimistic": 3, "likely": 2, "pessimistic": 1}])


MARKDOWN = """\
Read [this](https://example.org/a "A title") first.

# Guide #
Two words.
```python
# not a heading [x](y)
```
### Deep `code`
![Logo](logo.png) and `[no](link)`

Second part
-----------
- item
---
See <https://example.org/b>
[ref]: https://example.org/c
"""


def test_markdown_outline_builds_the_tree_of_headings():
    outline = compute("markdown_outline", markdown=MARKDOWN)
    assert (outline["title"], outline["preamble_words"]) == ("Guide", 3)
    [guide] = outline["headings"]
    assert [(node["level"], node["title"], node["line"]) for node in guide["children"]] == [
        (3, "Deep code", 8),
        (2, "Second part", 11),
    ]
    assert guide["words"] == 2


def test_markdown_outline_collects_links_outside_code():
    links = compute("markdown_outline", markdown=MARKDOWN)["links"]
    assert [(link["url"], link["line"]) for link in links] == [
        ("https://example.org/a", 1),
        ("logo.png", 9),
        ("https://example.org/b", 15),
        ("https://example.org/c", 16),
    ]
