"""The file that declares Temporal workflows: what it can say, and how it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogue.schemas import check_input_schema
from connectors.errors import Misconfigured
from connectors.formats.yaml import read_document, write_document
from connectors.temporal.config import (
    Declared,
    TemporalConfig,
    list_declared,
    read_definitions,
    read_file,
    settings_of,
)
from tests.thoroughness import examples

DOCUMENT = Path(__file__).parent / "temporal_files" / "source_document.yaml"
"""The configuration example of the specification, letter by letter."""
SECRET = "hunter2-hunter2"
EXAMPLE = DOCUMENT.read_text()


def read(text: str | bytes) -> Declared:
    return read_definitions(text if isinstance(text, bytes) else text.encode())


def one(**keys: Any) -> Any:
    """The definition of a workflow that says this beside what it must say."""
    entry = {"purpose": "Pays.", "taskQueue": "money"} | keys
    return read(yaml.safe_dump({"workflows": {"Pay": entry}}, sort_keys=False)).workflows[0]


def changed(old: str, new: str) -> str:
    """The example with one change."""
    assert old in EXAMPLE
    return EXAMPLE.replace(old, new, 1)


# What it says


def test_the_example_of_the_specification_declares_its_five_workflows():
    """E1: purpose, input, output and task queue of each."""
    declared = read(EXAMPLE)
    assert [workflow.name for workflow in declared.workflows] == [
        "IngestWorkflow", "UpdateXHRWorkflow", "ChatWorkflow", "NewChatMessageWorkflow", "ProxieJSONWorkflow",
    ]  # fmt: skip
    update = declared.workflows[1]
    assert update.id == "UpdateXHRWorkflow" and update.execution_type == "async"
    assert update.description == (
        "Updates XHR requests for DOM elements.\n\n"
        "Returns RAGResponse: The result of processing the fetched data."
    )
    assert update.input_schema == {
        "title": "RAGRequest",
        "type": "object",
        "properties": {
            "session_id": {
                "type": "string",
                "description": "The session ID associated with the request.",
            },
            "action": {"type": "string", "description": "The action to perform on the DOM element."},
        },
        "required": ["session_id", "action"],
        "additionalProperties": False,
    }
    assert [settings_of(workflow.metadata).task_queue for workflow in declared.workflows] == [
        "ingest-queue", "xhr-queue", "chat-queue", "message-queue", "json-queue",
    ]  # fmt: skip
    assert {workflow.cache_seconds for workflow in declared.workflows} == {86_400}
    assert not any(check_input_schema(workflow.input_schema).problem for workflow in declared.workflows)


def test_the_example_of_the_specification_says_how_to_connect_and_to_cache():
    """E2, E4."""
    declared = read(EXAMPLE)
    assert declared.connection is not None and declared.cache is not None
    assert declared.connection.settings == {
        "host_port": "localhost:7233",
        "namespace": "default",
        "environment": "local",
        "timeout_seconds": 5.0,
        "retry_initial_seconds": 0.1,
        "retry_maximum_seconds": 10.0,
        "retry_maximum_attempts": 5,
        "retry_backoff": 2.0,
    }
    cache = declared.cache
    assert (cache.ttl, cache.max_cache_size, cache.cleanup_interval) == (86_400, 104_857_600, 3_600)


def test_what_the_example_leaves_out_for_remote_services_is_read_too():
    """E2: the lines that are comments in the example, as they stand there."""
    lines = EXAMPLE.splitlines()
    start = lines.index('  # environment: "remote"')
    remote = [line.replace("# ", "", 1) for line in lines[start : start + 14]]
    local = EXAMPLE[EXAMPLE.index("  # Connection options") :]
    declared = read("\n".join(["temporal:", *remote, local]))

    assert declared.connection is not None
    assert declared.connection.secrets == {"oauth_client_secret": "your-client-secret"}
    assert (
        declared.connection.settings.items()
        >= {
            "environment": "remote",
            "host_port": "your-namespace.tmprl.cloud:7233",
            "oauth_client_id": "your-client-id",
            "oauth_audience": "your-audience",
            "oauth_url": "https://auth.temporal.io/oauth2/token",
            "tls_cert_file": "/path/to/client.pem",
            "tls_key_file": "/path/to/client.key",
            "tls_ca_file": "/path/to/ca.pem",
            "tls_server_name": "*.tmprl.cloud",
            "tls_insecure_skip_verify": False,
        }.items()
    )
    assert "your-client-secret" not in repr(declared)


def test_fields_have_types_bounds_and_defaults():
    """E9: a default makes a field optional, and so does required: false."""
    workflow = one(
        input={
            "type": "Payment",
            "fields": [
                {"amount": {"type": "number", "description": "Euros.", "minimum": 0, "maximum": 1.5}},
                {"currency": {"enum": ["EUR", "USD"], "default": "EUR"}},
                {"note": {"required": False, "maxLength": 10, "pattern": "^[a-z]*$", "nullable": True}},
                {"lines": {"type": "array", "minItems": 1, "items": {"type": "integer"}}},
                {
                    "payee": {
                        "type": "object",
                        "properties": {"name": "Who.", "age": {"type": "integer", "required": False}},
                        "additionalProperties": False,
                    }
                },
                {"extra": {"type": "any", "required": False}},
            ],
        }
    )
    assert workflow.input_schema == {
        "title": "Payment",
        "type": "object",
        "properties": {
            "amount": {"type": "number", "description": "Euros.", "minimum": 0, "maximum": 1.5},
            "currency": {"type": "string", "enum": ["EUR", "USD"], "default": "EUR"},
            "note": {"type": ["string", "null"], "maxLength": 10, "pattern": "^[a-z]*$"},
            "lines": {"type": "array", "minItems": 1, "items": {"type": "integer"}},
            "payee": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "description": "Who."},
                    "age": {"type": "integer"},
                },
                "required": ["name"],
            },
            "extra": {},
        },
        "required": ["amount", "lines", "payee"],
        "additionalProperties": False,
    }


def test_everything_that_is_optional_reaches_the_definition():
    """E1, E4, E10."""
    workflow = one(
        title="Pay a bill",
        tags=["finance", "slow"],
        version="1.10",
        category="payments",
        timeout="1h30m",
        cache={"ttl": "90s"},
        input={"type": "Bill", "fields": [{"bill": "Which."}]},
        output={"type": "Receipt", "fields": [{"number": {"type": "integer"}}]},
        workflowId="bill-{bill}",
        idReusePolicy="RejectDuplicate",
        idConflictPolicy="USE_EXISTING",
        progressQuery="progress",
        asks={"query": "open", "update": "decide"},
        queries={"progress": "How far it is.", "line": {"fields": [{"number": {"type": "integer"}}]}},
        signals={"approve": {"description": "Let it go on.", "fields": []}},
    )
    assert (workflow.title, workflow.tags, workflow.version) == ("Pay a bill", ["finance", "slow"], "1.10")
    assert (workflow.category, workflow.timeout_seconds, workflow.cache_seconds) == ("payments", 5_400, 90)
    assert workflow.output_schema["properties"] == {"number": {"type": "integer"}}
    assert workflow.metadata["temporal"] == {
        "task_queue": "money",
        "workflow_id": "bill-{bill}",
        "id_reuse_policy": "reject_duplicate",
        "id_conflict_policy": "use_existing",
        "progress_query": "progress",
        "asks": {"query": "open", "update": "decide"},
    }
    assert [(query.name, query.description) for query in workflow.queries] == [
        ("progress", "How far it is."),
        ("line", ""),
    ]
    assert workflow.queries[1].input_schema["required"] == ["number"]
    assert workflow.signals[0].input_schema["properties"] == {}


@pytest.mark.parametrize(
    ("block", "passed_as", "schema"),
    [
        (None, "none", {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "none"}, "none", {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "Order"}, "object", {"title": "Order", "type": "object"}),
        ({"type": "object"}, "object", {"type": "object"}),
    ],
)
def test_an_input_without_fields_is_nothing_or_anything(block, passed_as, schema):
    """E1: one with a type but no fields may be any object."""
    workflow = one(**({"input": block} if block else {}))
    assert workflow.input_schema == schema
    assert settings_of(workflow.metadata).input == passed_as


def test_positional_arguments_keep_the_order_of_the_fields():
    """E1."""
    workflow = one(input={"positional": True, "fields": [{"second": "b"}, {"first": "a"}]})
    own = settings_of(workflow.metadata)
    assert (own.input, own.input_order) == ("positional", ["second", "first"])


@pytest.mark.parametrize(
    ("cache", "own", "seconds"),
    [
        ("", "", None),
        ("cache: {enabled: true, ttl: 24h}", "", 86_400),
        ("cache: {enabled: true, ttl: 24h}", "cache: false", None),
        ("cache: {enabled: true, ttl: 24h}", "cache: {ttl: 1500ms}", 2),
        ("cache: {enabled: false, ttl: 24h}", "cache: {ttl: 1m}", None),
        ("", "cache: {ttl: 1m}", 60),
        ("", "cache: {}", None),
    ],
)
def test_a_workflow_is_cached_as_it_says_itself_or_as_the_file_says(cache, own, seconds):
    """E4: the file can switch caching off as a whole."""
    entry = f"workflows: {{Pay: {{purpose: Pays., taskQueue: money{', ' + own if own else ''}}}}}"
    assert read(f"{cache}\n{entry}").workflows[0].cache_seconds == seconds


def test_scalars_mean_what_yaml_1_2_says():
    """E1: no `no` becomes false, no time of day a number, no date a date."""
    text = "[no, 12:30, 2026-01-02, 0x1F, 0o17, 1e3, 0017, +1, .5, true, ~, null, '5', off, 1_000]"
    assert read_document(text.encode()).value == [
        "no", "12:30", "2026-01-02", 31, 15, 1000.0, 17, 1, 0.5, True, None, None, "5", "off", "1_000",
    ]  # fmt: skip


def test_anchors_repeat_what_they_name():
    """E1."""
    workflows = read("workflows:\n  A: &a {purpose: P., taskQueue: q}\n  B: *a\n").workflows
    assert [(workflow.name, workflow.description) for workflow in workflows] == [("A", "P."), ("B", "P.")]


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63) + 1, 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20),
        st.sampled_from(["no", "0o17", "1e3", "~", "null", "12:30", "<<", "=", "2026-01-02", ".5", "0x1"]),
        st.sampled_from(["", "a\nb", " a", "a: b", "- a", "# a"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab1-~", max_size=3), inner, max_size=3)
    ),
    max_leaves=15,
)


@settings(max_examples=examples(200))
@given(JSON)
def test_what_is_written_is_read_as_the_same(value):
    """E1: also texts that another reader of YAML takes for numbers or dates."""
    assert read_document(write_document({"value": value}).encode()).value == {"value": value}


def test_workflows_that_are_written_declare_the_same_again():
    """E1: with the cache that the whole file gave them."""
    declared = read(EXAMPLE)
    assert read(write_document({"workflows": declared.entries})).workflows == declared.workflows


# As the settings of a source


async def listed(**settings: Any) -> list[Any]:
    config = TemporalConfig.model_validate({"host_port": "localhost"} | settings)
    return [item async for item in list_declared(config)]


async def test_a_source_lists_what_its_text_or_its_file_declares(tmp_path):
    """E1, E10: the file is read anew each time."""
    file = tmp_path / "workflows.yaml"
    file.write_text("workflows: {A: {purpose: P., taskQueue: q}}")
    assert [item.name for item in await listed(definitions_file=str(file))] == ["A"]
    file.write_text("workflows: {B: {purpose: P.}}")
    assert [item.name for item in await listed(definitions_file=str(file), default_task_queue="q")] == ["B"]
    assert [item.name for item in await listed(definitions=EXAMPLE.partition("workflows:")[1] + " {}")] == []


async def test_a_file_that_names_another_connection_is_not_passed_over_in_silence(tmp_path):
    """E10: the source's own settings hold; that they differ is listed as skipped."""
    file = tmp_path / "workflows.yml"
    file.write_text(EXAMPLE)
    same = await listed(definitions_file=str(file), timeout_seconds=5)
    assert len(same) == 5
    *_, skipped = await listed(definitions_file=str(file), host_port="localhost:7234", namespace="other")
    assert skipped.reason == (
        "The connection in the file differs from the source's settings, which take precedence: hostPort, "
        "namespace. Import the file again to apply it."
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("missing.yaml", "No such file or directory."),
        ("workflows.txt", "must be an absolute path to a .yaml or .yml file."),
        ("folder.yaml", "not a regular file."),
        ("pipe.yaml", "not a regular file."),
        ("a\0b.yaml", "cannot be opened."),
    ],
)
async def test_only_files_are_read(tmp_path, name, told):
    """E5: a pipe would keep the listing waiting for ever."""
    import os

    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "workflows.txt").write_text(EXAMPLE)
    with pytest.raises(Misconfigured) as refused:
        await listed(definitions_file=f"{tmp_path}/{name}")
    assert str(refused.value).endswith(told)
    with pytest.raises(Misconfigured):
        read_file("workflows.yaml")


async def test_a_broken_file_is_told_by_line_and_key(tmp_path):
    """E5, E10."""
    file = tmp_path / "workflows.yaml"
    file.write_text(changed('taskQueue: "chat-queue"', 'taskQeue: "chat-queue"'))
    with pytest.raises(Misconfigured) as refused:
        await listed(definitions_file=str(file))
    assert str(refused.value) == (
        f"The file {file} cannot be used: line 73, workflows.ChatWorkflow.taskQeue: unknown key; "
        "did you mean taskQueue?"
    )


def test_a_text_in_the_settings_is_checked_and_never_keeps_a_secret():
    """E5, E6: whoever may look at a source sees its settings."""
    with_secret = changed("  # environment", f"  auth: {{apiKey: {SECRET}}}\n  # environment")
    for text, told in (
        (
            with_secret,
            "temporal.auth.apiKey: secrets are not allowed here. Remove it and enter it in its own field",
        ),
        ("workflows: {A: {}}", "line 1, workflows.A.purpose: required, but missing."),
    ):
        with pytest.raises(ValueError, match="definitions") as refused:
            TemporalConfig.model_validate({"host_port": "localhost", "definitions": text})
        assert told in str(refused.value) and SECRET not in str(refused.value)


def test_schemas_of_declared_fields_can_be_served():
    """A6.3: as JSON, and taken by the catalogue as they are."""
    workflow = one(input={"fields": [{"a": {"type": "array", "items": "x", "default": ["y"]}}]})
    assert json.loads(json.dumps(workflow.input_schema)) == check_input_schema(workflow.input_schema).schema
