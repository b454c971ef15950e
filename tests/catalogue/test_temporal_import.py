"""Importing files that declare Temporal workflows; no Temporal answers, and none has to."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from catalogue.actions.sources import change_source
from catalogue.models import Revision, Source, Workflow
from connectors.temporal.declarations import CacheBlock
from connectors.testing import free_port
from executions.models import CachePolicy
from executions.reading import describe_execution
from executions.result_cache import take_cache_settings
from mcp_bridge.results import execution_result
from tests.admin.conftest import admin_client
from tests.admin.pages import page_url, text_of
from tests.factories import make_execution, make_source, make_workflow

__all__ = ["admin_client"]
pytestmark = pytest.mark.django_db

EXAMPLE = Path(__file__).parents[1] / "connectors" / "temporal_files" / "source_document.yaml"
NAMES = [
    "IngestWorkflow",
    "UpdateXHRWorkflow",
    "ChatWorkflow",
    "NewChatMessageWorkflow",
    "ProxieJSONWorkflow",
]
SECRET = "hunter2-hunter2"
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file with these workflows, each given as further keys; the connection is to a closed port."""

    def write(*names: str, block: str = "", suffix: str = ".yaml", **temporal: object) -> str:
        connection = {"hostPort": "127.0.0.1:9", "timeout": "1s"} | temporal
        workflows = {name: {"purpose": f"Does {name}.", "taskQueue": "q"} for name in names}
        file = tmp_path / f"{'-'.join(names)}{suffix}"
        file.write_text(yaml.safe_dump({"temporal": connection, "workflows": workflows}) + block)
        return str(file)

    return write


def run(*words: str) -> str:
    """What the command writes. Raises CommandError where it would exit with 1."""
    out = StringIO()
    call_command("import_temporal", *words, stdout=out, no_color=True)
    return out.getvalue()


def refused(*words: str) -> str:
    with pytest.raises(CommandError) as error:
        run(*words)
    return str(error.value)


def present(source: str = "temporal") -> set[str]:
    return set(Workflow.objects.present().filter(source__name=source).values_list("name", flat=True))


def everything() -> tuple[object, ...]:
    """What an import may change."""
    return (
        list(Source.objects.values()),
        list(Workflow.objects.values()),
        list(CachePolicy.objects.values()),
        Revision.current(),
    )


def test_the_example_of_the_specification_is_imported_as_it_stands():
    """E1, E2, E4: all five workflows, their connection and their cache; databasePath is accepted."""
    told = run(str(EXAMPLE))

    assert told.splitlines()[:10] == [
        "Source temporal: new",
        *(f"  {name:<22}  added" for name in NAMES),
        "Workflows: 5 added",
        "Result cache, cleanup interval: 3,600 s instead of 300 s.",
        "cache.databasePath has no effect: results are kept in the product's own database.",
        "Agents see the added workflows once a curator enables them.",
    ]
    assert present() == set(NAMES)
    source = Source.objects.get()
    assert (source.kind, source.config["host_port"]) == ("temporal", "localhost:7233")
    chat = Workflow.objects.get(name="ChatWorkflow")
    assert (chat.upstream_id, chat.tool_name, chat.effective_cache_seconds) == (
        "ChatWorkflow", "ChatWorkflow", 86_400,
    )  # fmt: skip
    assert chat.metadata["temporal"] == {"task_queue": "chat-queue"} and not chat.enabled
    assert chat.declared_output_schema == {"type": "string"} and chat.output_schema is None
    xhr = Workflow.objects.get(name="UpdateXHRWorkflow")
    assert xhr.declared_output_schema is None, "only its workers know the type RAGResponse"
    assert CachePolicy.current().cleanup_seconds == 3600
    assert source.discovery_runs.get().added == 5


@pytest.mark.parametrize(
    ("declared", "fits", "does_not"),
    [
        ("string", "text", 1),
        ("String", "text", {"a": 1}),
        ("int64", 3, "3"),
        ("number", 2.5, "2.5"),
        ("float64", 2.5, [2.5]),
        ("bool", True, "true"),
        ("object", {"a": 1}, "a"),
        ("map[string]any", {"a": 1}, [1]),
        ("array", [1], {"0": 1}),
        ("[]string", ["a"], "a"),
        ("RAGResponse", {"a": 1}, None),
    ],
)
def test_a_result_of_another_type_than_declared_is_delivered_and_curators_are_told(
    write, admin_client, declared, fits, does_not
):
    """E5: as for HTTP tools, whose documents are often wrong about answers."""
    file = Path(write("A"))
    content = yaml.safe_load(file.read_text())
    content["workflows"]["A"]["output"] = {"type": declared, "description": "It."}
    file.write_text(yaml.safe_dump(content))
    run(str(file))
    workflow = Workflow.objects.get()

    def told(output: Any) -> bool:
        execution = make_execution(workflow, payload={"output": output})
        result = execution_result(execution, protocol_version="2025-11-25")
        assert not result.is_error and describe_execution(execution)["output"] == output
        page = text_of(admin_client.get(page_url(execution)))
        return "does not match the output schema that its definition declares" in page

    assert not told(fits)
    assert told(does_not) == (declared != "RAGResponse")


def test_the_same_file_once_more_changes_nothing(write):
    """E1, E10: nor does it close connections or forget cached results."""
    file = write("A", "B")
    run(file)
    before = everything()

    told = run(file)

    assert told.startswith("Source temporal: unchanged\n") and "Workflows: 2 unchanged" in told
    assert everything() == before


def test_a_dry_run_tells_the_same_and_writes_nothing(write):
    """E1."""
    run(write("A", "B"))
    file = write("B", "C", namespace="other", block="cache: {enabled: true, ttl: 1h, cleanupInterval: 1m}\n")
    before = everything()

    planned = run(file, "--dry-run")
    assert everything() == before
    done = run(file)

    assert planned.splitlines() == [
        "Source temporal: namespace",
        "  A  kept",
        "  B  updated",
        "  C  added",
        "Would be: 1 added, 1 updated, 1 kept",
        "Result cache, cleanup interval: 60 s instead of 300 s.",
        "Agents see the added workflows once a curator enables them.",
        "Could not connect to Temporal at 127.0.0.1:9: connection refused.",
    ]
    assert done.replace("Workflows: ", "Would be: ").startswith(planned)
    assert everything() != before


def test_a_dry_run_asks_temporal_by_the_settings_that_the_source_would_have(write):
    """E1, B4: of a source that is there and one that is not; nothing of it is kept."""
    port = free_port()
    run(write("A"))
    for source in ("temporal", "new"):
        planned = run(write("A", hostPort=f"127.0.0.1:{port}"), "--dry-run", "--source", source)
        assert f"Could not connect to Temporal at 127.0.0.1:{port}" in planned
    assert [source.config["host_port"] for source in Source.objects.all()] == ["127.0.0.1:9"]


def test_who_asks_for_agents_to_see_the_new_at_once_hears_what_becomes_of_that(write):
    """A4.2, E1: a source that is there has a setting of its own."""
    hidden = "once a curator enables them"
    assert hidden not in run(write("A"), "--expose-new", "--dry-run")
    run(write("A"))
    for words in (["--dry-run"], []):
        told = run(write("A", "B"), "--expose-new", *words)
        assert f"{hidden}: only a new source can enable them at once" in told
    assert not Workflow.objects.get(name="B").enabled


def test_workflows_of_earlier_files_stay_as_they_are(write):
    """E1, E4: with the cache that their own file gave them; those of the same name are replaced."""
    run(write("A", "B", block="cache: {enabled: true, ttl: 1h}\n"))
    run(write("B", "C", block="cache: {enabled: true, ttl: 2h}\n"))
    assert dict(Workflow.objects.values_list("name", "upstream_cache_seconds")) == {
        "A": 3600, "B": 7200, "C": 7200,
    }  # fmt: skip


def test_pruning_removes_what_the_file_has_not_and_a_later_file_brings_it_back(write):
    """E1: its record, tool name and all that a curator decided stay."""
    run(write("A", "B"))
    Workflow.objects.filter(name="A").update(enabled=True, tool_name="do_a")

    told = run(write("B", "C"), "--prune")
    assert "  A  removed" in told and "Workflows: 1 added, 1 unchanged, 1 removed" in told
    assert present() == {"B", "C"}

    assert "  A  returned" in run(write("A"))
    back = Workflow.objects.get(name="A")
    assert (back.missing_since, back.enabled, back.tool_name) == (None, True, "do_a")


def test_nothing_of_a_file_with_a_mistake_is_imported(write):
    """E5: every mistake is told."""
    run(write("A"))
    before = everything()
    file = Path(write("B", "C", namespace="other"))
    file.write_text(file.read_text().replace("taskQueue", "taskQeue"))

    assert refused(str(file)).splitlines() == [
        "Nothing was imported.",
        "line 8, workflows.B.taskQeue: unknown key; did you mean taskQueue?",
        "line 11, workflows.C.taskQeue: unknown key; did you mean taskQueue?",
    ]
    assert everything() == before


def test_of_very_many_mistakes_the_number_of_the_others_is_told(write):
    """E5."""
    file = Path(write("A"))
    file.write_text("workflows:\n" + "".join(f"  W{number}: {{}}\n" for number in range(120)))

    nothing, *told = refused(str(file)).splitlines()
    assert (nothing, len(told), told[-1]) == ("Nothing was imported.", 21, "And 100 more.")


def test_a_source_is_created_as_somebody_wants_it(write):
    """E1."""
    assert "once a curator enables them" not in run(write("A"), "--source", "orders", "--expose-new")
    assert Workflow.objects.get().enabled and Source.objects.get().name == "orders"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--source", "erp"], "Source erp is of the kind simplified, not temporal."),
        (["--source", "bad name"], "A source's name has 1 to 64 letters"),
        (["--secret", "password=x"], "Unknown secrets: password; there are apiKey, clientSecret."),
    ],
)
def test_what_cannot_be_a_source_is_refused(write, words, told):
    """E5: nothing is written."""
    make_source("erp")
    before = everything()
    assert told in refused(write("A"), *words)
    assert everything() == before


def test_a_file_that_is_none_is_refused(tmp_path):
    """E5."""
    assert "No such file or directory" in refused(str(tmp_path / "missing.yaml"))
    assert "must be an absolute path" in refused(str(Path(__file__)))


def test_a_file_of_workflows_alone_needs_a_source_to_go_to(write, tmp_path):
    """E1: which keeps its connection then."""
    alone = tmp_path / "alone.yaml"
    alone.write_text("workflows: {B: {purpose: Does B., taskQueue: q}}")
    assert "does not say where Temporal is (temporal.hostPort)" in refused(str(alone))

    run(write("A", namespace="mine"))
    run(str(alone))
    assert present() == {"A", "B"} and Source.objects.get().config["namespace"] == "mine"


def test_settings_that_no_file_knows_survive_an_import(write):
    """E1: of the connection the file has the whole word, as it has of its workflows."""
    run(write("A", namespace="mine"))
    source = Source.objects.get()
    source.config |= {"cancel_grace_seconds": 3}
    source.save()

    assert run(write("A")).startswith("Source temporal: namespace\n")
    config = Source.objects.get().config
    assert config["cancel_grace_seconds"] == 3 and "namespace" not in config


# Secrets


OAUTH = {"clientID": "me", "oauth2URL": "https://auth.example.com/token"}


def test_a_secret_of_the_file_is_stored_encrypted_and_nowhere_else(write):
    """E2, E6."""
    told = run(write("A", environment="remote", auth=OAUTH | {"clientSecret": SECRET}))
    source = Source.objects.get()
    assert source.credentials == {"oauth_client_secret": SECRET}
    assert SECRET not in f"{source.config} {source.encrypted_credentials} {told}"
    assert source.config["oauth_client_id"] == "me"


def test_a_secret_may_come_from_elsewhere(write, monkeypatch):
    """E2, E6: by either name; without it the settings are incomplete."""
    file = write("A", auth=OAUTH)
    assert "client secret" in refused(file)
    run(file, "--secret", f"clientSecret={SECRET}")
    assert Source.objects.get().credentials == {"oauth_client_secret": SECRET}

    assert run(file).startswith("Source temporal: unchanged"), "what is stored is kept"
    monkeypatch.setenv("CLIENT_SECRET", "another")
    assert run(file, "--secret-env", "oauth_client_secret=CLIENT_SECRET").startswith(
        "Source temporal: auth.clientSecret\n"
    )
    assert Source.objects.get().credentials == {"oauth_client_secret": "another"}
    with pytest.raises(CommandError, match="NOT_SET is not set"):
        run(file, "--secret-from", "clientSecret=NOT_SET")
    monkeypatch.setattr("sys.stdin", StringIO('{"clientSecret": "a third"}'))
    run(file, "--secrets-stdin")
    assert Source.objects.get().credentials == {"oauth_client_secret": "a third"}


def test_a_file_cannot_send_stored_secrets_elsewhere(write):
    """E6: whoever names another address has to know them."""
    run(write("A", auth=OAUTH | {"clientSecret": SECRET}))
    elsewhere = OAUTH | {"oauth2URL": "https://evil.example.com/token"}
    assert "enter its secrets again" in refused(write("B", auth=elsewhere))
    run(write("B", auth=elsewhere), "--secret", f"clientSecret={SECRET}")
    assert present() == {"A", "B"}


# By path


def test_a_source_can_read_the_file_itself(write):
    """E10: the path is stored, and not what it says now."""
    file = write("A")
    run(file, "--by-path")
    config = Source.objects.get().config
    assert config["definitions_file"] == file and "definitions" not in config
    assert present() == {"A"}


def test_a_file_that_is_read_by_its_path_decides_alone(write):
    """E10: nothing gets lost by that unasked."""
    run(write("A"))
    both, other = write("A", "B"), write("B")
    assert "lacks workflows that the source has (A)" in refused(other, "--by-path")
    run(both, "--by-path")
    assert present() == {"A", "B"}
    run(other, "--by-path", "--prune")
    assert present() == {"B"}
    run(write("C"))
    assert present() == {"B", "C"} and "definitions_file" not in Source.objects.get().config


def test_nothing_is_added_to_what_cannot_be_read(write, tmp_path):
    """E5: pruning replaces it."""
    file = write("A")
    run(file, "--by-path")
    Path(file).unlink()
    assert "cannot be read" in refused(write("B"))
    run(write("B"), "--prune")
    assert present() == {"B"}


# What is product-wide


def take(*, apply: bool = True, **keys: object) -> list[str]:
    return take_cache_settings(CacheBlock.model_validate({"enabled": True, "ttl": "1h"} | keys), apply=apply)


def test_the_result_cache_takes_over_what_nobody_has_set():
    """E4: also after a worker has noted that it cleaned."""
    CachePolicy.objects.create()
    assert take(maxCacheSize=2048, cleanupInterval="1h", apply=False) == [
        "Result cache, limit: 2,048 bytes instead of 104,857,600 bytes.",
        "Result cache, cleanup interval: 3,600 s instead of 300 s.",
    ]
    assert CachePolicy.current().max_bytes == 104_857_600
    take(maxCacheSize=2048, cleanupInterval="1h")
    assert (CachePolicy.current().max_bytes, CachePolicy.current().cleanup_seconds) == (2048, 3600)
    assert take(maxCacheSize=2048, cleanupInterval="1h") == []


def test_what_an_administrator_has_set_holds():
    """E4: that the file says otherwise is told, and where to change it."""
    CachePolicy.objects.create(max_bytes=5000, enabled=False)
    assert take(maxCacheSize=2048) == [
        "cache.maxCacheSize is 2,048 bytes, but 5,000 bytes are set here and remain in effect; an "
        "administrator "
        "changes it under Result cache.",
        "The result cache is switched off for all workflows; an administrator changes it under Result cache.",
    ]
    assert CachePolicy.current().max_bytes == 5000


def test_what_the_result_cache_cannot_be_set_to_is_told():
    """E4."""
    (told,) = take(cleanupInterval="1s")
    assert told.startswith("cache.cleanupInterval is not applied: ") and "10" in told
    assert CachePolicy.current().cleanup_seconds == 300


# Beside other sources


def test_the_workflows_of_other_sources_are_left_alone(write):
    """A5.3: a clash of names is settled as for every other engine."""
    other = make_workflow(name="A")
    run(write("A"), "--prune")
    mine = Workflow.objects.get(source__name="temporal")
    other.refresh_from_db()
    assert other.tool_name == "A" and mine.tool_name != "A"


def test_a_source_that_is_switched_off_can_be_imported_into(write):
    """A4.1: it stays off."""
    run(write("A"))
    change_source(Source.objects.get(), enabled=False)
    run(write("B"))
    assert present() == {"A", "B"} and not Source.objects.get().enabled
