"""Every command and every configuration in the documentation works, or says why no test can run it."""

import asyncio
import json
import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from catalogue.curation import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import HistoryEntry, Review, Workflow
from connectors.http_job import trial
from connectors.http_job.engine import preset_text
from connectors.network.policy import StdioCommand, allow_stdio_commands
from connectors.registry import connector_class
from mcp_bridge.client_configuration import HttpServer, McpClient, StdioServer
from tests.api.clients import administrator
from tests.catalogue.engine import Engine, definition, definitions
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.job_engines import Airflow, JobEngine, serving
from tests.docs.pages import BLOCKS, GUIDES, Block, Command
from tests.docs.reader import OURS, Reader, check_settings, fits, names_in, parser
from tests.factories import make_source, make_workflow
from tests.processes import ROOT, ExampleEngine

pytestmark = pytest.mark.django_db(transaction=True)

ELSEWHERE = {
    ("docs/migration.md", "json"): "tests/mcp_bridge/test_migration_guide.py",
    ("docs/adding-a-connector.md", "python"): "tests/connectors/test_adding_a_connector.py",
    ("docs/clients.md", "python"): "tests/mcp_bridge/test_documented_programs.py",
    ("docs/http-tools.md", "http"): "tests/connectors/test_http_tools_guide.py",
    ("docs/http-tools.md", "json"): "tests/connectors/test_http_tools_guide.py",
    ("docs/long-runs.md", "python"): "tests/mcp_bridge/test_long_runs_page.py",
    ("docs/mcp.md", "python"): "tests/mcp_bridge/test_documented_programs.py",
}
"""Pages whose blocks of one kind are run by a test of their own."""
OUTPUT = {"text", "mermaid"}
"""What is shown and not typed."""
COMMANDS = {"console", "bash", "sh"}
OF_PAGE = [block for block in BLOCKS if block.language not in OUTPUT and not block.excuse]
HERE = [block for block in OF_PAGE if (block.page, block.language) not in ELSEWHERE]
SOMEBODYS_SECRETS = ("CATALOGUE_SECRET_ORDERS_API_KEY", "ORDERS_KEY", "TEMPORAL_SECRET")
OPENAPI = {
    "openapi": "3.0.3",
    "info": {"title": "Repositories", "version": "1"},
    "servers": [{"url": "https://api.example.com"}],
    "paths": {
        "/repos/{name}": {
            "get": {
                "operationId": "issues/get",
                "summary": "Reads a repository.",
                "tags": ["pulls"],
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
                "responses": {"200": {"description": "It."}},
            }
        }
    },
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "security": [{"key": []}],
}


@pytest.fixture
def changed() -> Iterator[Engine]:
    """An engine two of whose reports have changed since they were enabled."""
    with Engine() as engine:
        engine.workflows = definitions(2)
        source = make_source("billing", base_url=engine.base_url)
        refresh_source(source)
        enable_workflows(Workflow.objects.filter(source=source))
        password = {
            "type": "object",
            "properties": {"password": {"type": "string"}},
            "required": ["password"],
        }
        engine.workflows = [
            definition(number, description="Another text.", inputSchema=password) for number in (1, 2)
        ]
        refresh_source(source)
        yield engine


def prepare(page: str, engine: ExampleEngine, request: pytest.FixtureRequest) -> dict[str, str]:
    """What a reader of this page has already; what its examples stand for here."""
    written = {
        "https://workflows.example.com": engine.base_url,
        '{"seconds": 2}': '{"seconds": 0}',
        "wfc_...": administrator().text,
    }
    if page in ("README.md", "docs/index.md", "docs/rest.md"):
        example = make_source("example-engine", base_url=engine.base_url, api_key=engine.api_key)
        refresh_source(example)
        enable_workflows(Workflow.objects.filter(source=example))
    if page == "docs/rest.md":
        make_workflow(tool_name="monthly")
        administrator().patch("/api/workflows/monthly/", {"title": "Monthly"}, format="json")
        written["/4711/"] = f"/{HistoryEntry.objects.latest('pk').pk}/"
    if page == "docs/engines.md":
        airflow = request.getfixturevalue("airflow")
        written |= {"place_order": "complete", "password=...": f"password={airflow.secret}"}
        written["https://airflow.example.com"] = f"http://127.0.0.1:{airflow.port}"
    if page == "docs/reviewing-changes.md":
        request.getfixturevalue("changed")
        first, second = Review.objects.order_by("workflow__tool_name")
        written |= {"5f1d09c2ab34...": first.offer_hash, "5f1d09c2ab34": first.offer_hash[:12]}
        written |= {"5f1d...": first.offer_hash, "77ab...": second.offer_hash}

    return written


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobEngine]:
    """Its run has ended long before two seconds have passed."""
    hurried = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 20))
    monkeypatch.setattr(trial, "asyncio", hurried)
    with serving(Airflow()) as engine:
        yield engine


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    (tmp_path / "openapi.json").write_text(json.dumps(OPENAPI))
    (tmp_path / "openapi.yaml").write_text(yaml.safe_dump(OPENAPI))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "catalogue.yaml").write_text("version: 1\n")
    (tmp_path / "mine.yaml").write_text(preset_text("airflow"))
    workflows = next(
        block for block in BLOCKS if block.page == "docs/temporal.md" and block.language == "yaml"
    )
    (tmp_path / "workflows.yaml").write_text(workflows.text)
    monkeypatch.chdir(tmp_path)
    for name in SOMEBODYS_SECRETS:
        monkeypatch.setenv(name, "secret-0123456789")
    allow_stdio_commands({"notes": StdioCommand(command=["notes"])})
    with http_tool_hosts("127.0.0.1"):
        yield Reader(folder=tmp_path, token=administrator().text, patch=monkeypatch)
    allow_stdio_commands({})


@pytest.mark.parametrize(
    "block", [one for one in HERE if one.language in COMMANDS], ids=lambda block: block.place
)
def test_the_commands_of_a_block_work_and_print_what_it_shows(
    block: Block, reader: Reader, example_engine: ExampleEngine, request: pytest.FixtureRequest
) -> None:
    if block.language == "sh" and not any(
        " " in line.partition("=")[0] for line in block.text.splitlines()[:1]
    ):
        check_settings(block.text, reader.patch)
        return
    reader.written = prepare(block.page, example_engine, request)
    for command in block.commands():
        if "API_KEY=..." in command.text:
            command = Command(
                command.text.replace("API_KEY=...", f"API_KEY={example_engine.api_key}"), command.output
            )
        output = reader.type(command)
        is_refusal = any(line.startswith("CommandError: ") for line in command.output)
        assert ("CommandError: " in output) == is_refusal, output
        if command.output and command.output[0].startswith("{") and "curl" in command.text:
            assert names_in("\n".join(command.output)) <= names_in(output.replace('":', '": ')), output
        else:
            shown = "\n".join(command.output)
            for written, meant in reader.written.items():
                shown = shown.replace(written, meant)
            assert fits(shown.splitlines(), output), output


@pytest.mark.parametrize(
    "block", [one for one in HERE if one.language not in COMMANDS], ids=lambda block: block.place
)
def test_a_configuration_is_taken_by_what_reads_it(block: Block, reader: Reader) -> None:
    check = {"json": check_json, "yaml": check_yaml}.get(block.language)
    assert check, f"{block.place}: no test knows what to do with {block.language}"
    check(block, reader)


def check_json(block: Block, reader: Reader) -> None:
    match json.loads(block.text):
        case {"mcpServers": _} as configuration:
            assert configuration in client_configurations()
        case {"name": str(name), "arguments": dict(arguments)}:
            call_command("call_tool", name, json.dumps(arguments))
        case {"argument_overrides": dict(overrides)} as change:
            properties = {name: {"type": ["string", "integer"]} for name in overrides}
            make_workflow(tool_name="report", input_schema={"type": "object", "properties": properties})
            answer = administrator().patch("/api/workflows/report/", change, format="json")
            assert answer.status_code == 200, answer.content
        case {"base_url": _} as config:
            connector_class("simplified").Config.model_validate(config | {"api_key": "k"})
        case {"request_id": _, "stages": _} as answer:
            document = yaml.load((ROOT / "tests" / "api" / "openapi.yaml").read_text(), yaml.CSafeLoader)
            responses = document["paths"]["/workflow/"]["post"]["responses"]
            name = responses["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert set(answer) <= set(document["components"]["schemas"][name]["properties"])
        case _:
            pytest.fail(f"{block.place}: no test knows what reads this")


def client_configurations() -> list[Any]:
    """What the product prints for these, and what starts the wheel."""
    folder = "/path/to/workflow-catalogue"
    servers = (
        HttpServer(token="wfc_..."),
        StdioServer(python=f"{folder}/.venv/bin/python", manage=f"{folder}/manage.py", variables={}),
    )
    parser("stdio").parse_args([])
    wheel = {"command": "workflow-catalogue", "args": ["stdio"]}
    printed = [json.loads(server.configure(McpClient.GENERIC)) for server in servers]
    return [*printed, {"mcpServers": {"workflow-catalogue": wheel}}]


def check_yaml(block: Block, reader: Reader) -> None:
    document = yaml.safe_load(block.text)
    file = reader.folder / "of-the-page.yaml"
    file.write_text(block.text)
    match document:
        case {"jobs": dict(jobs)}:
            for step in (step for job in jobs.values() for step in job["steps"] if "run" in step):
                reader.type(Command(step["run"]))
        case {"start": _, "status": _}:
            call_command("job_engine", str(file))
        case {"webhook": _}:
            # A part, that any declaration without one can have.
            file.write_text(preset_text("airflow") + block.text)
            call_command("job_engine", str(file))
        case {"temporal": _}:
            call_command("import_temporal", str(file), "--dry-run")
        case {"version": 1}:
            call_command("import_catalogue", str(file))
            assert "Nothing differs." in reader.type(
                Command("python manage.py import_catalogue of-the-page.yaml --plan")
            )
        case _:
            pytest.fail(f"{block.place}: no test knows what reads this")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_block_names_its_language(page: Path) -> None:
    known = OUTPUT | COMMANDS | {"json", "yaml", "python", "http"}
    blocks = [block for block in BLOCKS if block.page == str(page.relative_to(ROOT))]
    assert [block.place for block in blocks if block.language not in known] == []


@pytest.mark.parametrize(
    "block", [one for one in BLOCKS if one.excuse and one.language in COMMANDS], ids=lambda block: block.place
)
def test_only_what_no_test_can_run_is_excused(block: Block) -> None:
    foreign = [command for command in block.commands() if command.words[0] not in OURS]
    assert foreign, f"{block.place}: take the excuse away"


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.excuse], ids=lambda block: block.place)
def test_what_nobody_runs_names_files_and_values_that_are_there(block: Block) -> None:
    files = re.findall(r"\bdeploy/[\w./*-]+", block.text)
    assert [file for file in files if not list(ROOT.glob(file))] == []
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text())
    for key in re.findall(r"--set ([\w.]+)=", block.text):
        reduce(getitem, key.split("."), values)


def test_the_line_for_claude_code_is_the_one_that_the_product_prints() -> None:
    (shown,) = [block for block in BLOCKS if block.text.startswith("$ claude mcp add")]
    assert shown.text == f"$ {HttpServer(token='wfc_...').configure(McpClient.CLAUDE_CODE)}\n"


@pytest.mark.parametrize(("block", "test"), ELSEWHERE.items(), ids=str)
def test_pages_with_a_test_of_their_own_have_one(block: tuple[str, str], test: str) -> None:
    page, language = block
    assert any((one.page, one.language) == block for one in BLOCKS), f"no {language} in {page} any more"
    assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")
