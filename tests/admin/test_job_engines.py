"""Adding engines with a job API in the admin: those that ship by their name, others by their declaration."""

import asyncio
from collections import Counter
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from catalogue.discovery import refresh_source
from catalogue.models import DiscoveryRun, Source, Workflow
from connectors.http_job import trial
from connectors.http_job.engine import preset_text
from tests.admin.pages import add_url, form_values, text_of
from tests.admin.test_sources import NEW, errors_of
from tests.catalogue.test_commands import run
from tests.connectors.job_engines import Airflow, Answer, Asked, Buildbot, JobEngine, serving
from tests.factories import make_source

pytestmark = pytest.mark.django_db(transaction=True)


def chosen(**settings: str) -> dict[str, str]:
    return NEW | {
        "kind": "http_job",
        "setting_verify_tls": "on",
        **{f"setting_{name}": value for name, value in settings.items()},
    }


def test_an_engine_that_ships_is_chosen_by_its_name_and_asks_for_address_and_login_only(admin_client):
    """B10, E1: from "Add source" to its workflows without a line of YAML."""
    choice = admin_client.get(add_url(Source))
    query = "?kind=http_job&amp;setting_preset=airflow"
    assert query in choice.content.decode()
    assert "Airflow 3" in text_of(choice) and "Dagster" in text_of(choice)
    form = admin_client.get(add_url(Source) + query.replace("&amp;", "&"))
    assert form_values(form)["setting_preset"] == "airflow"
    values = form.context["adminform"].form.fields["setting_values"]
    assert "github_actions" in str(values.widget.attrs) and "airflow" not in str(values.widget.attrs)
    with serving(Airflow()) as engine:
        given = {"preset": "airflow", "base_url": f"http://127.0.0.1:{engine.port}", "username": "admin"}
        response = admin_client.post(add_url(Source), chosen(**given, password=Airflow.secret))
        assert response.status_code == 302, errors_of(response)
        source = Source.objects.get()
        assert source.config == given
        assert source.credentials == {"password": Airflow.secret}
        admin_client.post(
            reverse("admin:catalogue_source_changelist"),
            {"action": "refresh_selected", "_selected_action": [str(source.pk)]},
        )
    found = Workflow.objects.get(upstream_id="complete")
    assert found.input_schema["properties"]["cups"]["minimum"] == 1
    assert found.input_schema["required"] == ["sort"]


def test_a_mistake_in_a_declaration_is_shown_at_its_field_with_its_line(admin_client):
    """B4: and the text that was entered stays."""
    declaration = "name: Tea\nlist: {get: /jobs, itms: a, id: id}\n"
    given = chosen(preset="own", base_url="http://tea.example.com", declaration=declaration)
    response = admin_client.post(add_url(Source), given)
    (message,) = errors_of(response)["setting_declaration"]
    assert "line 2, list.itms: unknown key; did you mean items?" in message
    assert "itms" in form_values(response)["setting_declaration"]


def test_the_command_shows_what_a_declaration_would_send_and_what_is_wrong_with_it(tmp_path):
    """B10: before anything is connected."""
    file = tmp_path / "airflow.yaml"
    file.write_text(run("job_engine", "--preset", "airflow")[0])
    shown, _ = run("job_engine", str(file), "--arguments", '{"cups": 2}')
    assert "POST /api/v2/dags/ID/dagRuns" in shown
    assert '"cups": 2' in shown
    assert '"title": "Declaration"' in run("job_engine", "--schema")[0]
    file.write_text("name: Tea\nlits: {}\n")
    with pytest.raises(CommandError, match=r"line 2, lits: unknown key; did you mean list\?"):
        run("job_engine", str(file))


def test_the_command_shows_what_a_webhook_has_to_send_and_what_is_read_in_a_delivery(tmp_path):
    """B10: so that a declared webhook can be tried with a delivery that the engine has recorded."""
    file, delivery = tmp_path / "github.yaml", tmp_path / "delivery.json"
    file.write_text(run("job_engine", "--preset", "github_actions")[0])
    shown, _ = run("job_engine", str(file))
    assert "X-Hub-Signature-256: sha256=<HMAC-SHA256 of {body} in hex>" in shown
    delivery.write_text('{"action": "completed", "workflow_run": {"id": 30433642, "workflow_id": 159038}}')
    shown, _ = run("job_engine", str(file), "--delivery", str(delivery))
    assert "the delivery reports the end of run 30433642 of workflow 159038" in shown
    delivery.write_text('{"zen": "Design for failure."}')
    assert "the delivery reports no end" in run("job_engine", str(file), "--delivery", str(delivery))[0]
    delivery.write_text("payload=")
    with pytest.raises(CommandError, match=r"delivery\.json cannot be used"):
        run("job_engine", str(file), "--delivery", str(delivery))
    file.write_text(run("job_engine", "--preset", "airflow")[0])
    with pytest.raises(CommandError, match="declares no webhook"):
        run("job_engine", str(file), "--delivery", str(delivery))


def test_a_declaration_is_tried_at_its_engine_before_anything_is_connected(tmp_path, monkeypatch):
    """B10: its author sees what each expression finds, and an error of the engine in its words; no secret is
    shown, and nothing is stored."""
    polls = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 20))
    monkeypatch.setattr(trial, "asyncio", polls)
    file = tmp_path / "mine.yaml"
    mistaken = preset_text("buildbot").replace("tags: tags", "tags: labels[0][1]")
    file.write_text(mistaken)
    with serving(Buildbot()) as engine:
        at = f"--at=http://127.0.0.1:{engine.port}"
        secret = f"--secret=token={Buildbot.secret}"
        brisk = '--config={"min_poll_seconds": 1}'
        ended = '--arguments={"cups": 3, "sort": "Assam"}'
        told, _ = run("job_engine", str(file), at, secret, brisk, "--run=complete", ended)
        cancelled, _ = run("job_engine", "--preset=buildbot", at, secret, brisk, "--run=last", "--cancel")
        with pytest.raises(CommandError, match="400 Bad Request: cups: Cups: none"):
            run("job_engine", str(file), at, secret, "--run=complete", '--arguments={"cups": 0}')
        with pytest.raises(CommandError, match="no workflow gone; nothing was started"):
            run("job_engine", str(file), at, secret, "--run=gone")
        with pytest.raises(CommandError, match="401 Unauthorized"):
            run("job_engine", str(file), at)
    for line in (
        "  GET /api/v2/builders?limit=200&offset=0&order=builderid",
        "  tags: nothing",
        '  keep.scheduler: "force"',
        "  inputs.each: 4 found",
        "  1 (complete): Lets it complete.",
        '    sort (required): {"type": "string", "description": "Sort", "enum": ["Assam", "Darjeeling"]}',
        "The lookup by key finds that run.",
        "The run is completed.",
    ):
        assert line in told.splitlines(), told
    assert "the engine refused: No force scheduler starts this builder." in told
    assert '"properties": {"cups": [3, "Force Build Form"]}' in told
    assert "The run is running: building" in cancelled and "The run is cancelled." in cancelled
    assert Buildbot.secret not in told + cancelled
    assert not Source.objects.exists()


class Kettle(JobEngine):
    """One whose results are elsewhere."""

    declaration = """
name: Kettle
list: {get: /jobs, items: "@", id: id}
start: {post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}
status: {get: "/runs/{run_id}", state: state, states: {done: completed}}
result: {get: "/runs/{run_id}/output", query: {part: all}, output: "@"}
"""

    def __init__(self, result: Answer) -> None:
        super().__init__()
        self.result = result

    def answer(self, asked: Asked) -> Answer:
        if asked.path.endswith("/output"):
            return self.result
        return 200, {"/jobs": [{"id": "boil"}], "/runs/7": {"state": "done"}}.get(asked.path, {"id": "7"})


class AskingKettle(JobEngine):
    """Asks until it has been asked twice what it asks."""

    declaration = """
name: Kettle
list: {get: /jobs, items: "@", id: id}
start: {post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}
status: {get: "/runs/{run_id}", state: state, states: {asks: running, done: completed}}
questions:
  get: /runs/{run_id}/questions
  items: "@"
  id: id
  message: text
  schema: fields
  answer: {post: "/runs/{run_id}/answer", json: "{arguments}"}
"""

    def answer(self, asked: Asked) -> Answer:
        if asked.path.endswith("/questions"):
            return 200, [{"id": "q1", "text": "Is it hot?", "fields": {"properties": {"hot": {}}}}]
        times = sum(one.path.endswith("/questions") for one in self.asked)
        state = "done" if times >= 2 else "asks"
        return 200, {"/jobs": [{"id": "boil"}], "/runs/7": {"state": state}}.get(asked.path, {"id": "7"})


def test_a_trial_shows_what_a_run_asks(tmp_path, monkeypatch):
    """B10: once, and goes on when it is answered at the engine."""
    monkeypatch.setattr(trial, "asyncio", SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)))
    file = tmp_path / "kettle.yaml"
    file.write_text(AskingKettle.declaration)
    assert "questions.answer\n  POST /runs/RUN_ID/answer" in run("job_engine", str(file))[0]
    with serving(AskingKettle()) as engine:
        told, _ = run("job_engine", str(file), f"--at=http://127.0.0.1:{engine.port}", "--run=boil")
    assert told.count("The run asks q1: Is it hot?") == 1
    for line in ("  items: 1 found", '  schema: {"properties": {"hot": {}}}', "The run is completed."):
        assert line in told.splitlines(), told
    assert not [asked for asked in engine.asked if asked.path.endswith("/answer")]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((404, {"error": "nothing here"}), "404 Not Found: nothing here"),
        ((403, {"error": "not yours"}), "403 Forbidden: not yours"),
        ((503, {"error": "busy"}), "503 Service Unavailable: busy"),
        ((200, None), "JSON"),
    ],
)
def test_a_trial_names_the_request_that_found_no_result(tmp_path, result, words):
    """B10: with its query, so that it can be repeated by hand."""
    file = tmp_path / "kettle.yaml"
    file.write_text(Kettle.declaration)
    shown = StringIO()
    with serving(Kettle(result)) as engine:
        at = f"--at=http://127.0.0.1:{engine.port}"
        with pytest.raises(CommandError) as caught:
            call_command("job_engine", str(file), at, "--run=boil", stdout=shown)
    for told in (shown.getvalue(), str(caught.value)):
        assert "GET /runs/7/output: " in told and words in told
    assert "result[0]\n  GET /runs/7/output?part=all\n  fails: " in shown.getvalue()
    assert "The run is completed." in shown.getvalue()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset=buildbot", "--run=x"), "give its address with --at"),
        (("--preset=buildbot", "--at=tea"), "base_url: "),
        (("--preset=buildbot", "--at=http://tea", '--config={"x": 1}'), "x: "),
    ],
)
def test_a_trial_says_which_option_is_wrong(options, words):
    """B4: before anything is sent."""
    with pytest.raises(CommandError, match=words):
        run("job_engine", *options)


def test_the_command_takes_a_declaration_from_its_file(tmp_path):
    """B4: as JSON in a shell's quotes it is hard to write; a file that is not there is named."""
    file = tmp_path / "mine.yaml"
    file.write_text(preset_text("buildbot"))
    address = '--config={"base_url": "http://tea.example.com"}'
    run("add_source", "tea", "http_job", address, f"--config-file=declaration={file}")
    assert Source.objects.get().config["declaration"] == preset_text("buildbot")
    with pytest.raises(CommandError, match=r"gone\.yaml cannot be read"):
        run("add_source", "more", "http_job", address, "--config-file=declaration=gone.yaml")


class ManyJobs(JobEngine):
    """One that lists thousands of jobs in pages, and says what each takes only when it is asked for it."""

    jobs = 5_000
    declaration = """
name: Many
list:
  get: /jobs
  query: {offset: "{offset}", limit: "{limit}"}
  pages: {by: offset, size: 1000, total: total}
  items: jobs
  id: id
  detail: {get: "/jobs/{id}", description: about, inputs: {each: inputs}}
start: {post: "/jobs/{id}", json: "{arguments}", run_id: id}
status: {get: "/runs/{run_id}", state: state, states: {going: running}}
"""

    def answer(self, asked: Asked) -> Answer:
        if asked.path != "/jobs":
            return 200, {"about": "Brews.", "inputs": {"cups": {}}}
        begin, size = int(asked.query["offset"]), int(asked.query["limit"])
        page = [{"id": f"job-{number}"} for number in range(begin, min(begin + size, self.jobs))]
        return 200, {"jobs": page, "total": self.jobs}

    def asked_for(self) -> Counter[str]:
        return Counter(asked.path for asked in self.asked if asked.path != "/jobs")


# Five thousand requests take six seconds of CPU.
@pytest.mark.engines
def test_five_thousand_workflows_are_listed_within_the_limits_of_the_source():
    """A1.4: with a second request each. A listing that is not complete changes nothing, the next one goes on
    where it stopped, and none asks for a workflow twice; what is then written takes few statements."""
    with serving(ManyJobs()) as engine:
        assert isinstance(engine, ManyJobs)
        config = {"declaration": engine.declaration, "details_per_listing": 2_000, "details_at_once": 8}
        at = f"http://127.0.0.1:{engine.port}"
        source = make_source(kind="http_job", base_url=at, api_key="", config=config)
        for asked in (2_000, 4_000):
            assert "made 2,000 detail requests" in refresh_source(source).error
            assert engine.asked_for().total() == asked
            assert not Workflow.objects.exists()
        with CaptureQueriesContext(connection) as written:
            assert refresh_source(source).outcome == DiscoveryRun.Outcome.SUCCEEDED
        assert engine.asked_for().total() == 5_000
        assert set(engine.asked_for().values()) == {1}
    found = Workflow.objects.filter(source=source)
    assert (found.count(), found.filter(description="Brews.").count()) == (5_000, 5_000)
    assert found.first().input_schema["properties"].keys() == {"cups"}
    assert len(written) < 500, len(written)
