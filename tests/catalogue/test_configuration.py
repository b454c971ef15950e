"""Configuration as code: what a file may say, what an import makes of it, and what it refuses."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue import configuration
from catalogue.actions.workflows import override_workflow
from catalogue.configuration import (
    LIMITS,
    SECTIONS,
    CatalogueFile,
    export_catalogue,
)
from catalogue.discovery import refresh_source
from catalogue.history import command
from catalogue.imports.configuration import CatalogueImportRequest, Plan, import_catalogue
from catalogue.imports.pipeline import ImportRefused
from catalogue.models import (
    HistoryEntry,
    ProductSettings,
    Review,
    Revision,
    ServerFeature,
    Source,
    Toolset,
    Workflow,
    WorkflowFilter,
)
from catalogue.models.source import OBSERVED
from catalogue.reconciliation import UPSTREAM_FIELDS, read_listing
from catalogue.schemas import GENERIC_SCHEMA
from connectors.definitions import WorkflowDefinition, parse_definition
from tests.catalogue.engine import definitions
from tests.factories import make_feature, make_filter, make_source, make_toolset, make_workflow
from tests.threads import together

pytestmark = pytest.mark.django_db
BY = command("import_catalogue")


def request(text: str, **options: Any) -> CatalogueImportRequest:
    return CatalogueImportRequest(file=CatalogueFile.read(text.encode()), by=BY, **options)


def load(text: str, **options: Any) -> Plan:
    return import_catalogue(request(text, **options))


def problems(text: str, **options: Any) -> list[str]:
    """What an import refuses; nothing has changed then."""
    before = export_catalogue()
    with pytest.raises(ImportRefused) as refused:
        load(text, **options)
    assert export_catalogue() == before
    return refused.value.reasons


def told(plan: Plan) -> list[str]:
    return [f"{change.verb} {change.kind} {change.name}" for change in plan.changes]


OTHERWISE: dict[configuration.Curated, set[str]] = {
    configuration.SOURCE: {"name", "kind", "config", "encrypted_credentials"},
    configuration.WORKFLOW: {
        "source", "upstream_id", "enabled", "former_tool_names", "missing_since",
        *configuration.LISTED.values(), *configuration.LISTED_BESIDES,
    },
    configuration.TOOLSET: {"slug", "picked"},
    configuration.FEATURE: {"source", "kind", "upstream_id", "definition"},
    configuration.FILTER: {"position"},
    configuration.TOOLSET_RULE: {"position", "toolset"},
    configuration.Curated(ProductSettings, ()): {"overrides"},
    configuration.Curated(Group, ()): {"name", "permissions"},
}  # fmt: skip
"""In the file in another form."""
OF_AN_INSTALLATION = {
    "id", "created_at", "updated_at", "configured_at", "reserved_keys", "content_hash", "warning",
    "first_seen_at", "changed_at", "changed_by", "row_version",
}  # fmt: skip


@pytest.mark.parametrize("curated", OTHERWISE, ids=lambda curated: curated.model.__name__)
def test_every_field_of_a_curated_model_is_exported_or_left_out_by_name(curated):
    """A field that is added to a model has to be put into one of the lists."""
    meta = curated.model._meta
    known = {field.name for field in (*meta.concrete_fields, *meta.many_to_many)} - OF_AN_INSTALLATION
    observed = {Source: {*OBSERVED}, ServerFeature: {"offered", "missing_since"}}.get(curated.model, set())
    assert known == {*curated.fields} | OTHERWISE[curated] | observed
    assert not {*curated.fields} & OTHERWISE[curated]


def test_everything_that_engines_say_is_in_the_section_listed():
    """So that a workflow can be made from the file as from a listing."""
    assert {*configuration.LISTED} | {"id"} == {*WorkflowDefinition.model_fields}
    derived = {"content_hash", "warning", "changed_at", "missing_since"}
    assert {*configuration.LISTED.values(), *configuration.LISTED_BESIDES} | derived == {*UPSTREAM_FIELDS}


def test_the_file_is_the_same_whatever_order_the_rows_were_made_in():
    for name in ("b", "a"):
        make_toolset(
            name, picked=[make_workflow(make_source(name), tool_name=f"tool_{name}", upstream_id="1")]
        )
    first = export_catalogue()
    assert first.index("  a:") < first.index("  b:")
    Source.objects.filter(name="b").update(name="c")
    Source.objects.filter(name="a").update(name="b")
    Source.objects.filter(name="c").update(name="a")
    assert export_catalogue(["sources"]) == export_catalogue(["sources"])
    assert first.startswith("# ") and "\nversion: 1\n" in first


def test_what_a_workflow_leaves_out_is_the_default_again():
    """A file says all of what it names: an override that was taken back on staging goes in production too."""
    row = make_workflow(make_source("orders"), upstream_id="1", tool_name="report", title_override="Old")
    plan = load("{version: 1, workflows: {orders: {'1': {tool_name: report, description: Ours}}}}")
    assert [str(change) for change in plan.changes] == [
        '~ workflow orders/1 (report)\n    description: - -> "Ours"\n    title: "Old" -> -'
    ]
    row.refresh_from_db()
    assert (row.title_override, row.description_override, row.enabled) == ("", "Ours", True)
    assert not load("{version: 1, workflows: {orders: {'1': {description: Ours}}}}")


def test_tool_names_are_exchanged_and_former_ones_are_kept():
    """Names are unique at every moment, also while an import moves them."""
    source = make_source("orders")
    for number, name in enumerate(("one", "two"), start=1):
        make_workflow(source, upstream_id=str(number), tool_name=name)
    text = "{version: 1, workflows: {orders: {'1': {tool_name: two}, '2': {tool_name: one}}}}"
    assert len(load(text).changes) == 2
    names = Workflow.objects.order_by("upstream_id").values_list("tool_name", "former_tool_names")
    assert list(names) == [("two", ["one"]), ("one", ["two"])]
    assert not load(text)


def test_a_tool_name_that_another_workflow_has_is_refused_in_words():
    make_workflow(make_source("other"), upstream_id="9", tool_name="taken")
    make_workflow(make_source("orders"), upstream_id="1", tool_name="report")
    text = "version: 1\nworkflows:\n  orders:\n    '1': {tool_name: taken}\n"
    assert problems(text) == [
        "line 4, workflows.orders.1: the tool name taken belongs to workflow 9 of other: rename one of them, "
        "here or in the file."
    ]


def test_filters_come_in_the_files_order_and_others_after_them():
    """Without pruning nothing is lost, and a second import has nothing to do."""
    make_filter("ours", position=1)
    make_filter("theirs", position=2)
    text = "{version: 1, filters: [{action: exclude, pattern: new}, {pattern: theirs, note: Why.}]}"
    assert told(load(text)) == [
        "add filter exclude name new", "change filter include name theirs",
        "change filter include name ours",
    ]  # fmt: skip
    patterns = list(WorkflowFilter.objects.values_list("pattern", flat=True))
    assert patterns == ["new", "theirs", "ours"]
    assert not load(text)
    assert told(load(text, prune=True)) == ["remove filter include name ours"]


def test_only_pruning_removes_and_only_within_the_sections_of_the_file():
    make_workflow(make_source("orders"))
    make_toolset("finance")
    Group.objects.create(name="curators")
    assert not load("{version: 1, toolsets: {}, groups: {}}")
    assert told(load("{version: 1, toolsets: {}, groups: {}}", prune=True)) == [
        "remove group curators", "remove toolset finance",
    ]  # fmt: skip
    assert Source.objects.exists()
    assert told(load("{version: 1, sources: {}}", prune=True)) == ["remove source orders"]
    assert not Workflow.objects.exists()


def test_a_plan_writes_nothing_and_an_import_moves_the_revision_once():
    text = (
        "{version: 1, toolsets: {a: {}, b: {rules: [{pattern: x}]}}, filters: [{pattern: y}], groups: {c: }}"
    )
    before = export_catalogue(), Revision.current()
    assert len(load(text, dry_run=True).changes) == 4
    assert (export_catalogue(), Revision.current()) == before
    assert not HistoryEntry.objects.exists()
    load(text)
    assert Revision.current() == before[1] + 1
    entries = HistoryEntry.objects.values_list("actor_name", "door", "object_name")
    assert {entry[:2] for entry in entries} == {("manage.py import_catalogue", "command")}
    assert {entry[2] for entry in entries} == {"a", "b", "c", "include name y"}


def test_the_history_says_from_what_to_what():
    toolset = make_toolset("finance", title="Old")
    load("{version: 1, toolsets: {finance: {title: New}}}")
    assert HistoryEntry.of(toolset).get().message == 'Import: title: "Old" -> "New".'


def test_secrets_are_kept_given_or_asked_for_and_never_shown():
    source = make_source("orders", api_key="stored-key-0123456789")
    text = export_catalogue()
    assert "secrets:\n    - api_key\n" in text
    assert not load(text)
    plan = load(text, secrets={"orders": {"api_key": "given-key-0123456789"}})
    assert [str(change) for change in plan.changes] == [
        '~ source orders\n    api_key: "as before" -> "as given"'
    ]
    source.refresh_from_db()
    assert source.credentials == {"api_key": "given-key-0123456789"}
    shown = " ".join(entry.message for entry in HistoryEntry.objects.all())
    assert "0123456789" not in shown + text
    source.delete()
    assert "the secret api_key is not stored here: give it with the file." in problems(text)[0]


def test_a_mistake_is_told_without_what_only_follows_from_it():
    """The workflows of a source that is refused are not there to be picked, but the file has them."""
    source = make_source("orders", api_key="stored-key-0123456789")
    make_toolset("finance", picked=[make_workflow(source, tool_name="order_report")])
    text = export_catalogue()
    Toolset.objects.all().delete()
    source.delete()

    [told] = problems(text)
    assert "the secret api_key is not stored here" in told
    both = problems(text.replace("    - order_report", "    - order_report\n    - order_reprot"))
    assert ["there is no workflow order_reprot" in one for one in both] == [False, True]


def test_every_secret_that_an_import_lacks_is_named_at_once():
    text = "version: 1\nsources: {a: {kind: http_job, config: {}, secrets: [token, webhook_secret]}}"
    named = [one.partition("the secret ")[2].split()[0] for one in problems(text)]
    assert named == ["token", "webhook_secret"]


def test_stored_secrets_do_not_follow_a_source_to_another_address():
    """Whoever may import a file could otherwise have them sent to a server of their own."""
    make_source("orders", base_url="http://127.0.0.1:9")
    elsewhere = export_catalogue().replace("http://127.0.0.1:9", "http://127.0.0.1:10")
    assert problems(elsewhere) == [
        "line 6, sources.orders: the secret api_key does not follow the source to another address: "
        "give it with the file."
    ]
    assert told(load(elsewhere, secrets={"orders": {"api_key": "a-new-key-0123456789"}})) == [
        "change source orders"
    ]


def test_a_workflow_that_the_engine_has_not_listed_says_what_to_do():
    make_source("orders")
    text = "version: 1\nworkflows:\n  orders:\n    '7':\n      title: Report\n"
    assert problems(text) == [
        "line 4, workflows.orders.7: its source has not listed this workflow yet: refresh the source first, "
        "or import a file whose section `listed` has it."
    ]


def test_what_the_engine_said_comes_back_as_it_was():
    """Also what is listed no more, what could not be used, and names that clash whatever their order."""
    source = make_source("orders", api_key="")
    schema = {
        "type": "object",
        "properties": {"z": {"type": "number", "maximum": 2**64}, "a": {"default": 1.0}},
    }
    said = {
        "upstream_title": "Report: on #1", "description": "One.\n\n  Two: \ttabbed", "tags": ["no", "1"],
        "category": "null", "version": "1.10", "author": "~", "execution_type": "sync",
        "input_schema": schema, "metadata": {"b": 1, "a": []},
        "output_schema": {"type": "object", "properties": {"b": {}, "a": {}}}, "upstream_cache_seconds": 5,
        "hints": {"readOnlyHint": True}, "icons": [{"src": "https://e.example.com/i.png"}],
        "queries": [{"name": "how_far", "description": "", "inputSchema": schema}],
    }  # fmt: skip
    make_workflow(source, name="report", tool_name="report_2", upstream_id="2", **said)
    broken = {"schema_problem": "Not JSON Schema.", "resembles": "the built-in tool list_workflows"}
    make_workflow(source, name="report", tool_name="report", upstream_id="1", **broken)
    make_workflow(source, tool_name="gone", missing_since=timezone.now(), former_tool_names=["went", "left"])
    before = export_catalogue()
    source.delete()
    load(before)
    assert export_catalogue() == before
    row = Workflow.objects.get(tool_name="report_2")
    assert {name: getattr(row, name) for name in said} == said
    assert list(row.input_schema["properties"]) == ["z", "a"]
    assert Workflow.objects.get(tool_name="gone").missing_since is not None


def test_what_the_engine_has_listed_here_stays_as_it_is():
    """Production's own engine has the last word on what it can do."""
    make_workflow(make_source("orders"), upstream_id="1", tool_name="report", description="Of production.")
    staged = export_catalogue().replace("Of production.", "Of staging.")
    assert not load(staged)
    assert Workflow.objects.get().description == "Of production."


MISTAKES = {
    "": "line 1: the document is empty.",
    "sources: {}": "line 1: the file must begin with `version: 1`; this product reads version 1",
    "version: 2": "line 1, version: version 2 is unknown; this product reads version 1",
    "- 1": "line 1: the file must begin with `version: 1`",
    "version: 1\ntoolset: {}": "line 2, toolset: unknown key; possible keys are version, settings",
    "version: 1\ntoolsets:\n  a:\n    titel: A\n": "line 4, toolsets.a.titel: unknown key",
    "version: 1\ntoolsets: {a: {title: 5}}": "line 2, toolsets.a.title: must be a string; put it in quotes.",
    "version: 1\ntoolsets: {a: {enabled: 'yes'}}": "line 2, toolsets.a.enabled: must be true or false.",
    "version: 1\ntoolsets: {A b: {}}": "line 2, toolsets.A b: An address has 1 to 64 lower-case letters",
    "version: 1\ntoolsets: {a: {picked: [repor]}}": "there is no workflow repor; did you mean report?",
    "version: 1\nworkflows: {orders: {'1': {tool_name: bill}}}\ntoolsets: {a: {picked: [report]}}": (
        "line 3, toolsets.a.picked[0]: the workflow report is called bill now."
    ),
    "version: 1\ntoolsets: {a: {rules: [{pattern: '(', syntax: regex}]}}": "line 2, toolsets.a.rules[0]",
    "version: 1\nfilters: [{pattern: '(', syntax: regex}]": "line 2, filters[0]",
    "version: 1\ntoolsets: {a: {rules: [{action: include}]}}": "toolsets.a.rules[0]: needs `pattern`.",
    "version: 1\nfilters: [{patern: x}]": "did you mean pattern?",
    "version: 1\nsettings: {retry_attempt: 3}": "did you mean retry_attempts?",
    "version: 1\nsettings: {retry_attempts: -1}": "line 2, settings.retry_attempts: This must be",
    "version: 1\ngroups: {a: [catalogue.view_sorce]}": "did you mean catalogue.view_source or",
    "version: 1\nsources: {a: {kind: simplyfied}}": "line 2, sources.a.kind: ",
    "version: 1\nsources: {a: {kind: simplified}}": "line 2, sources.a",
    "version: 1\nsources: {orders: {kind: prefect}}": "is of the kind simplified here",
    "version: 1\nsources: {a: {kind: simplified, config: {base_url: 'http://e', api_key: x}}}": "a secret",
    "version: 1\nsources: {a: {kind: simplified, secrets: [password]}}": "unknown secrets: password",
    "version: 1\nworkflows: {order: {'1': {}}}": "there is no such source; did you mean orders?",
    "version: 1\nworkflows: {orders: {'1': {tool_name: list_workflows}}}": "taken by a built-in tool",
    "version: 1\nworkflows: {orders: {'1': {timeout_seconds: -1}}}": "workflows.orders.1.timeout_seconds",
    "version: 1\nworkflows: {orders: {'1': {tool_aliases: 5}}}": "orders.1.tool_aliases: This must be former",
    "version: 1\nworkflows: {orders: {'1': {tool_aliases: {a: soon}}}}": "tool_aliases: This must be former",
    "version: 1\nworkflows: {orders: {'1': {approval_rules: [{argument: /a, is: [], value: 1}]}}}": "one of",
    "version: 1\nlisted: {orders: {'2': {description: x}}}": "line 2, listed.orders.2: name: Field required.",
    "version: 1\ntoolsets: {a: {}, a: {}}": "the key occurs twice",
    "version: 1\ntoolsets: [": "is never closed",
    "version: 1\ntoolsets: !!python/object:os.system {}": "tags such as '!' are not supported",
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_what_to_do(text):
    make_workflow(make_source("orders"), upstream_id="1", tool_name="report")
    assert MISTAKES[text] in "\n".join(problems(text))


def test_bombs_and_files_without_end_are_refused():
    """A few letters that stand for very much, and very many letters."""
    names = "abcdefgh"
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{one}: &{one} [{','.join([f'*{before}'] * 9)}]" for before, one in itertools.pairwise(names)]
    bomb = "version: 1\n" + "\n".join(lines)
    assert "more than 600,000 values" in problems(bomb)[0]
    assert "nested deeper" in problems("version: 1\ntoolsets: " + "[" * 300 + "]" * 300)[0]
    assert "larger than" in problems("version: 1\n#" + "x" * LIMITS.bytes)[0]


def run(*args: str) -> tuple[str, int]:
    out = StringIO()
    try:
        call_command("import_catalogue", *args, stdout=out)
    except SystemExit as end:
        return out.getvalue(), int(end.code or 0)
    return out.getvalue(), 0


def test_a_plan_counts_what_there_is_one_of(tmp_path):
    """B8: settings are one object, of which there is no number."""
    file = tmp_path / "catalogue.yaml"
    file.write_text(
        "version: 1\nsettings: {execution_timeout: 60}\n"
        "filters:\n- {pattern: a}\ntoolsets: {finance: {}, sales: {}}\n"
    )
    out, code = run(str(file), "--plan")
    assert (out.splitlines()[-1], code) == ("settings to change, 1 filter to add, 2 toolsets to add.", 2)
    out, _ = run(str(file))
    assert out.splitlines()[-1] == "settings changed, 1 filter added, 2 toolsets added."


def test_a_plan_exits_with_2_where_something_differs(tmp_path, monkeypatch):
    """For CI: a step that fails when production is not what the repository says."""
    make_source("the-orders")
    file = tmp_path / "catalogue.yaml"
    call_command("export_catalogue", str(file))
    assert run(str(file), "--check") == ("Nothing differs.\n", 0)
    Source.objects.all().delete()
    with pytest.raises(
        CommandError, match="set the environment variable CATALOGUE_SECRET_THE_ORDERS_API_KEY"
    ):
        run(str(file), "--plan")
    monkeypatch.setenv("CATALOGUE_SECRET_THE_ORDERS_API_KEY", "given-key-0123456789")
    said, code = run(str(file), "--plan")
    assert (said.splitlines()[0], said.splitlines()[-1], code) == (
        "+ source the-orders",
        "1 source to add.",
        2,
    )
    assert run(str(file))[0].endswith("\n1 source added.\n")
    assert Source.objects.get().credentials == {"api_key": "given-key-0123456789"}
    with pytest.raises(CommandError, match="No such file"):
        run(str(tmp_path / "other.yaml"))


def test_a_section_can_be_exported_alone(tmp_path):
    make_toolset("finance")
    out = StringIO()
    call_command("export_catalogue", "--section", "toolsets", "--section", "filters", stdout=out)
    assert [name for name in SECTIONS if f"\n{name}:" in out.getvalue()] == ["filters", "toolsets"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.databases("catalogue.imports.configuration")
def test_of_two_imports_at_once_one_changes_everything_and_the_other_nothing():
    """They take turns, so that neither plans with what the other is about to change."""
    source = make_source("orders")
    for number in range(20):
        make_workflow(source, upstream_id=str(number), tool_name=f"old_{number}")
    text = export_catalogue().replace("tool_name: old_", "tool_name: new_")
    text = text.replace("toolsets: {}", "toolsets: {finance: {picked: [new_1]}}")
    outcomes = together(*[lambda: len(load(text).changes)] * 3)
    assert sorted(outcomes) == [0, 0, 21]
    assert Toolset.objects.get().picked.get().tool_name == "new_1"


@pytest.mark.django_db(transaction=True)
@pytest.mark.databases("catalogue.imports.configuration")
def test_an_import_while_the_engine_is_listed_loses_neither(example_engine):
    """Reconciliation writes the engine's words, the import the curator's."""
    address, key = example_engine.base_url, example_engine.api_key
    source = make_source("example", base_url=address, api_key=key, change_policy="follow")
    assert refresh_source(source).outcome == "succeeded"
    text = export_catalogue(["workflows"]).replace("enabled: false", "enabled: true\n      title: Ours")
    present = Workflow.objects.count()
    Workflow.objects.update(content_hash="x", description="Old.")
    listed, imported = together(partial(refresh_source, source), partial(load, text))
    assert (listed.outcome, listed.updated, len(imported.changes)) == ("succeeded", present, present)
    rows = Workflow.objects.values_list("enabled", "title_override", "description")
    assert {row[:2] for row in rows} == {(True, "Ours")}
    assert "Old." not in {row[2] for row in rows}


@pytest.mark.django_db(transaction=True)
@pytest.mark.databases("catalogue.imports.configuration")
def test_an_import_plans_with_what_somebody_else_was_about_to_change():
    """It waits for them before it looks, so that the name that they gave away is refused in words."""
    source = make_source("orders")
    for number in (1, 2):
        make_workflow(source, upstream_id=str(number), tool_name=f"tool_{number}")
    text = "{version: 1, workflows: {orders: {'2': {tool_name: taken}}}}"
    with ThreadPoolExecutor(1) as other, transaction.atomic():
        override_workflow(Workflow.objects.get(upstream_id="1"), tool_name="taken")
        importing = other.submit(together, partial(load, text))
        time.sleep(0.2)
    with pytest.raises(ImportRefused, match="the tool name taken belongs to workflow 1 of orders"):
        importing.result()


def test_a_change_that_was_accepted_on_staging_is_accepted_in_production():
    """If it is what the engine here offers; anything else goes on waiting for a review."""
    source = make_source("orders", api_key="")
    for number in ("1", "2"):
        make_workflow(source, upstream_id=number, tool_name=f"tool_{number}", description="New.")
    staging = export_catalogue(["workflows", "listed"])
    definition = parse_definition(
        {"id": "1", "name": Workflow.objects.get(upstream_id="1").name, "description": "New.",
         "inputSchema": GENERIC_SCHEMA}, position=0,
    )  # fmt: skip
    layer = read_listing([definition]).layers["1"]
    Workflow.objects.update(description="Old.")
    for row, offer in zip(
        Workflow.objects.order_by("upstream_id"), (layer["content_hash"], "other"), strict=True
    ):
        Review.objects.create(
            workflow=row, kind=Review.Kind.CHANGED, offer_hash=offer, offered={"description": "New."}
        )
    assert told(load(staging)) == ["change workflow orders/1 (tool_1)"]
    assert list(Workflow.objects.order_by("upstream_id").values_list("description", flat=True)) == [
        "New.",
        "Old.",
    ]
    assert [review.workflow.upstream_id for review in Review.objects.all()] == ["2"]
    assert not load(staging)


# Names that others had


def test_a_name_that_still_runs_another_workflow_is_refused():
    """Whether the file or the catalogue says so; one that the file gives away at the same time is free."""
    later = (timezone.now() + timedelta(days=1)).isoformat()
    source = make_source("orders")
    make_workflow(source, upstream_id="1", tool_name="hail", tool_aliases={"greet": later})
    make_workflow(source, upstream_id="2", tool_name="other")
    told = "calls by this name still run hail"
    assert told in problems("{version: 1, workflows: {orders: {'2': {tool_name: greet}}}}")[0]
    both = "{version: 1, workflows: {orders: {'1': {tool_name: hail%s}, '2': {tool_name: greet}}}}"
    assert told in problems(both % f", tool_aliases: {{greet: '{later}'}}")[0]
    assert load(both % "") and Workflow.objects.get(upstream_id="2").tool_name == "greet"


# Two commands on an empty product


def test_an_import_that_lists_its_sources_first_needs_nothing_else(tmp_path, engine, capsys, monkeypatch):
    """Also of a file without what engines say; and nothing is exposed before the file has said what is."""
    source = make_source("erp", base_url=engine.base_url, new_workflows="exposed")
    engine.workflows = definitions(3)
    refresh_source(source)
    override_workflow(Workflow.objects.get(upstream_id="wf-1"), tool_name="monthly", title_override="Monthly")
    Workflow.objects.filter(upstream_id="wf-2").update(enabled=False)
    make_filter("draft*", action="exclude")
    make_toolset("finance", picked=[Workflow.objects.get(upstream_id="wf-3")])
    path = tmp_path / "catalogue.yaml"
    path.write_text(before := export_catalogue([name for name in SECTIONS if name != "listed"]))
    for model in (Source, Toolset, WorkflowFilter):
        model.objects.all().delete()
    HistoryEntry.objects.all()._raw_delete("default")

    monkeypatch.setenv("CATALOGUE_SECRET_ERP_API_KEY", "key")
    with pytest.raises(CommandError, match="refresh the source first") as refused:
        call_command("import_catalogue", str(path))
    assert "Nothing was changed." in str(refused.value) and not Source.objects.exists()
    with pytest.raises(CommandError, match="--plan and --refresh exclude each other"):
        call_command("import_catalogue", str(path), "--refresh", "--plan")
    engine.workflows = definitions(4)
    call_command("import_catalogue", str(path), "--refresh")
    assert "erp: 4 workflows listed" in capsys.readouterr().out
    enabled = dict(Workflow.objects.values_list("upstream_id", "enabled"))
    assert enabled == {"wf-1": True, "wf-2": False, "wf-3": True, "wf-4": False}
    entry = HistoryEntry.of(Workflow.objects.get(upstream_id="wf-1")).get()
    assert entry.changes["enabled"] == [False, True], "it was listed hidden"
    Workflow.objects.filter(upstream_id="wf-4").delete()
    assert export_catalogue([name for name in SECTIONS if name != "listed"]) == before


def test_an_engine_that_does_not_answer_does_not_keep_the_rest_from_being_imported(tmp_path, capsys):
    """As far as the file says what it lists; what is refused after that says that the sources stay."""
    path = tmp_path / "catalogue.yaml"
    source = "{kind: simplified, config: {base_url: 'http://127.0.0.1:9'}}"
    workflows = "workflows: {erp: {'1': {tool_name: report, enabled: true}}}"
    listed = "listed: {erp: {'1': {name: report, description: Reports.}}}"
    text = f"version: 1\nsources: {{erp: {source}}}\n{workflows}\n"
    path.write_text(text)
    with pytest.raises(CommandError, match="except that sources may have been added"):
        call_command("import_catalogue", str(path), "--refresh")
    assert Source.objects.get().name == "erp" and not Workflow.objects.exists()
    path.write_text(f"{text}{listed}\n")
    call_command("import_catalogue", str(path), "--refresh")
    assert "erp: " in capsys.readouterr().err and Workflow.objects.get().enabled


# Size


def test_an_import_costs_queries_by_the_batch():
    """Not by the workflow: also where each changes in its own way, and is in the history."""
    counts = []
    for count in (20, 180):
        Source.objects.all().delete()
        source = make_source("orders")
        rows = [make_workflow(source, upstream_id=f"wf-{number:03}") for number in range(count)]
        text = export_catalogue(["workflows", "listed"])
        for row in rows:
            text = text.replace(
                f"tool_name: {row.tool_name}\n", f"tool_name: own_{row.pk}\n      title: Of {row.pk}\n"
            )
        Workflow.objects.exclude(pk__in=[row.pk for row in rows[::2]]).delete()
        with CaptureQueriesContext(connection) as queries:
            plan = load(text)
        assert len(plan.changes) == count == HistoryEntry.objects.filter(message__contains="own_").count()
        HistoryEntry.objects.all()._raw_delete("default")
        counts.append(len(queries))
    assert counts[1] - counts[0] <= 8 and counts[1] < 30, counts


def test_what_was_decided_on_prompts_and_resources_comes_back():
    library, notes = make_source("library"), make_source("notes", new_workflows="exposed")
    greet = make_feature(library, "greet", served_as="hello", title_override="Hello")
    rules = make_feature(library, "library://rules", kind="resource")
    make_feature(library, "undecided", enabled=False)
    hidden = make_feature(notes, "note://{id}", kind="template", enabled=False)
    make_feature(notes, "as new")
    text = export_catalogue(["features"])
    document = CatalogueFile.read(text.encode()).document.value["features"]
    assert document["library"]["prompt"].keys() == {"greet"}
    assert document["library"]["resource"].keys() == {"library://rules"}
    definition = {"name": "note://{id}", "description": "What note://{id} is for."}
    decided = {"enabled": False, "served_as": "note://{id}", "definition": definition}
    assert document["notes"] == {"template": {"note://{id}": decided}}
    assert not load(text)
    ServerFeature.objects.filter(source=library).update(enabled=False, title_override="")
    ServerFeature.objects.filter(pk=hidden.pk).update(enabled=True)
    ServerFeature.objects.filter(pk=greet.pk).update(served_as="greet")
    revision = Revision.current()
    assert told(load(text)) == [
        "change prompt greet of library",
        "change resource library://rules of library",
        "change resource template note://{id} of notes",
    ]
    assert (export_catalogue(["features"]), Revision.current()) == (text, revision + 1)
    assert "served_as" in HistoryEntry.of(greet).get().message
    (pruned,) = load(
        "{version: 1, features: {library: {prompt: {greet: {enabled: true, served_as: hello}}}, "
        "notes: {template: {'note://{id}': {}}}}}",
        prune=True,
    ).changes[1:]
    assert (pruned.name, "enabled: true -> -" in str(pruned)) == (f"{rules} of library", True)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ("{library: {prompt: {other: {}}}}", "its server has not listed it here: refresh the source first"),
        ("{library: {tool: {greet: {}}}}", "unknown key; possible keys are prompt, resource, template"),
        ("{library: {prompt: {greet: {enabled: 1}}}}", "must be true or false"),
        ("{library: {prompt: {greet: {served_as: two words}}}}", "letters, digits"),
        ("{library: {prompt: {greet: {words: {}}}}}", "unknown key"),
        ("{library: {prompt: {other: {definition: {name: 7}}}}}", "definition: name: Input should be"),
        ("{library: {prompt: {other: {definition: 7}}}}", "definition: must be a mapping"),
        ("{library: {prompt: {other: {definition: {name: x}, served_as: greet}}}}", "already has this"),
    ],
)
def test_what_cannot_be_decided_on_a_prompt_is_refused_with_its_place(features, reason):
    make_feature(make_source("library"), "greet", enabled=False)
    (told_problem,) = problems(f"{{version: 1, features: {features}}}")
    assert "features.library" in told_problem and reason in told_problem


def test_a_product_that_knows_no_server_gets_its_prompts_from_the_file():
    """As it gets workflows from the section `listed`; the next listing compares them."""
    make_feature(make_source("library"), "greet", served_as="hello")
    make_feature(Source.objects.get(), "note://{id}", kind="template")
    text = export_catalogue()
    Source.objects.all().delete()
    load(text, secrets={"library": {"api_key": "key"}})
    assert export_catalogue() == text
    greet = ServerFeature.objects.get(upstream_id="greet")
    assert (greet.enabled, greet.description) == (True, "What greet is for.")
    assert HistoryEntry.of(greet).get().kind == "added"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("note://{", "cannot be used"),
        ("{+x}", "does not begin with a scheme"),
        ("note://x", "has no variable"),
    ],
)
def test_a_template_that_no_server_could_have_is_refused(template, reason):
    make_source("library")
    feature = f"{{'{template}': {{definition: {{name: x}}}}}}"
    (told_problem,) = problems(f"{{version: 1, features: {{library: {{template: {feature}}}}}}}")
    assert reason in told_problem
