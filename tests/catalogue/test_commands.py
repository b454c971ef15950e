"""The commands that scripts and operators rely on: what they print, where, and how they exit."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command, get_commands
from django.utils import timezone

from catalogue.models import Source, Workflow
from connectors.registry import BUILT_IN, connector_class
from tests.catalogue.engine import definition, definitions
from tests.factories import NOWHERE, make_source, make_workflow
from tests.packages import declare_package
from tests.processes import run_python

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted(name for name, app in get_commands().items() if app == "catalogue")


def run(*words: str) -> tuple[str, str]:
    """What the command writes to stdout and stderr. Raises CommandError where it would exit with 1."""
    out, err = StringIO(), StringIO()
    call_command(*words, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize("name", OURS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        call_command(name, "--help")

    assert ended.value.code == 0
    usage = capsys.readouterr().out
    assert name in usage and "options:" in usage and len(usage.splitlines()) > 5


@pytest.mark.e2e
def test_a_command_whose_output_nobody_reads_any_more_ends_without_a_word():
    """Such as `list_tools | head -1`."""
    words = [sys.executable, "manage.py", "check"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None and one.stderr is not None
        one.stdout.close()
        said = one.stderr.read()

    assert (one.returncode, said) == (141, "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["export_catalogue", "."], "^. cannot be written: Is a directory.$"),
        (["job_engine", "none.yaml"], "^none.yaml cannot be read: No such file or directory.$"),
        (["job_engine", sys.executable], "cannot be read: it is not UTF-8 text.$"),
        (["verify_audit", "--file", "none"], "^none cannot be read: No such file or directory.$"),
        (["verify_audit", "--file", sys.executable], "cannot be read: it is not UTF-8 text.$"),
        (["worker", "--concurrency", "0"], "'0' is not a whole number from 1 on"),
        (["serve", "--graceful-seconds", "-1"], "'-1' is not a whole number from 0 on"),
        (["serve", "--port", "80000"], "'80000' is not a whole number from 0 to 65535"),
        (["client_config", "--client", "emacs"], "'emacs' .choose from .*claude-code"),
    ],
)
def test_what_a_command_cannot_read_write_or_take_is_told_in_a_sentence(db, words, complaint):
    """B5"""
    with pytest.raises(CommandError, match=complaint):
        run(*words)


@pytest.mark.e2e
def test_a_shell_sees_errors_on_stderr_and_in_the_exit_code(tmp_path):
    """B5: this mistake is found without a database, so the process gets none."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment["CATALOGUE_DATA_DIR"] = str(tmp_path)
    done = run_python(["manage.py", "add_source", "erp", "nonesuch"], environment=environment)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: kind: Unknown kind of source 'nonesuch'")


# --- add_source -----------------------------------------------------------------------------------------


def test_a_source_is_added_with_everything_that_was_said_of_it(db):
    """A4.1"""
    out, err = run(
        "add_source", "erp", "simplified", "--config", f'{{"base_url": "{NOWHERE}"}}',
        "--secret", "api_key=a=b c", "--refresh-interval", "60", "--expose-new",
    )  # fmt: skip

    assert (out, err) == ("Added source erp (simplified).\n", "")
    source = Source.objects.get()
    assert source.credentials == {"api_key": "a=b c"} and source.config == {"base_url": NOWHERE}
    assert (source.refresh_interval, source.new_workflows, source.enabled) == (60, "exposed", True)
    assert list(Source.objects.due(source.next_refresh_at)) == [source]


def test_a_source_is_added_with_the_policies_of_its_curator(db):
    """A1.2, A4.3"""
    config = '{"base_url": "http://engine.example.com"}'
    options = ("--hold-new", "--change-policy", "hold", "--tolerated-loss", "50")
    call_command("add_source", "erp", "simplified", "--config", config, *options)
    source = Source.objects.get()
    assert (source.new_workflows, source.change_policy, source.vanishing_share_percent) == (
        "held",
        "hold",
        50,
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["erp", "simplified"],
            "config: The settings of source erp cannot be used: base_url: Field",
        ),
        (["erp", "nonesuch"], "kind: Unknown kind of source 'nonesuch'; known kinds: "),
        (["bad name", "simplified", "--config", "@"], "name: A source's name has 1 to 64 letters"),
        (["erp", "simplified", "--config", "@", "--refresh-interval", "999999999"], "refresh_interval: "),
        (["erp", "simplified", "--config", "@", "--refresh-interval", "-1"], "refresh_interval: "),
        (["erp", "simplified", "--config", "@", "--secret", "password=x"], "config: "),
        (["taken", "simplified", "--config", "@"], "name: Source with this Name already exists"),
        (
            ["erp", "mcp", "--config", '{"urll": "https://mcp.example.com/mcp"}'],
            "urll: there is no such setting; did you mean url?",
        ),
        (["erp", "mcp", "--config", '{"colour": 3}'], "colour: there is no such setting"),
        (["erp", "simplified", "--config", "[]"], "argument --config: must be a JSON object"),
        (["erp", "simplified", "--config", "{"], "argument --config: not valid JSON"),
        (["erp", "simplified", "--secret", "justthis"], "argument --secret: must look like KEY=VALUE"),
        (["erp", "simplified", "--secret", "=x"], "argument --secret: must look like KEY=VALUE"),
        (["erp", "simplified", "--secret", "api_key="], "argument --secret: must look like KEY=VALUE"),
    ],
)
def test_a_source_that_cannot_work_is_refused_with_the_reason_by_field(db, words, complaint):
    """B4, B5"""
    make_source("taken")
    words = [f'{{"base_url": "{NOWHERE}"}}' if word == "@" else word for word in words]

    with pytest.raises(CommandError) as refused:
        run("add_source", *words)

    assert complaint in str(refused.value)
    assert Source.objects.count() == 1


def test_a_mistyped_secret_is_not_repeated_in_the_complaint(db):
    """E6"""
    with pytest.raises(CommandError) as refused:
        run("add_source", "erp", "simplified", "--config", f'{{"base_url": "{NOWHERE}"}}',
            "--secret", "api-key=s3cret-value", "--secret", "api_key=s3cret-välue")  # fmt: skip

    assert "api-key" in str(refused.value) and "s3cret" not in str(refused.value)


def test_secrets_come_from_the_environment_or_standard_input(db, monkeypatch):
    """E6: where no list of processes shows them."""
    config = ["--config", f'{{"base_url": "{NOWHERE}"}}']
    monkeypatch.setenv("ENGINE_KEY", "from=environment")
    run("add_source", "one", "simplified", *config, "--secret-env", "api_key=ENGINE_KEY")
    monkeypatch.setattr("sys.stdin", StringIO('{"api_key": "from stdin"}\n'))
    run("add_source", "two", "simplified", *config, "--secrets-stdin", "--max-concurrent", "3")

    one, two = Source.objects.order_by("name")
    assert (one.credentials, one.max_concurrent) == ({"api_key": "from=environment"}, None)
    assert (two.credentials, two.max_concurrent) == ({"api_key": "from stdin"}, 3)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [("s3cret", "standard input: not valid JSON"), ('{"api_key": 5}', "each secret must be a string")],
)
def test_standard_input_without_secrets_is_refused_without_repeating_it(db, monkeypatch, given, complaint):
    """B4, E6"""
    monkeypatch.setattr("sys.stdin", StringIO(given))
    with pytest.raises(CommandError) as refused:
        run("add_source", "erp", "simplified", "--secrets-stdin")
    assert complaint in str(refused.value) and "s3cret" not in str(refused.value)


def test_a_variable_that_is_not_set_or_empty_is_told(db, monkeypatch):
    """B4: an empty secret would be stored as none."""
    monkeypatch.setenv("SET_TO_NOTHING", "")
    with pytest.raises(CommandError, match="the environment variable SET_TO_NOTHING is empty"):
        run("add_source", "erp", "simplified", "--secret-env", "api_key=SET_TO_NOTHING")
    with pytest.raises(CommandError, match="the environment variable NOT_SET_ANYWHERE is not set"):
        run("add_source", "erp", "simplified", "--secret-env", "api_key=NOT_SET_ANYWHERE")


@pytest.mark.parametrize("kind", BUILT_IN)
def test_the_settings_of_a_kind_are_explained(kind, capsys):
    """B10: all of them, so that nobody has to read code to write --config."""
    with pytest.raises(SystemExit) as ended:
        call_command("add_source", "--kind-help", kind)

    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"  {name} (" in told for name in connector_class(kind).Config.model_fields)


@pytest.mark.e2e
def test_a_connector_that_cannot_be_used_is_told_by_check_and_stops_nothing(tmp_path):
    """B5, B6: a package's mistake is a warning, also to the commands that check first."""
    declare_package(tmp_path, "broken-engine", broken="nowhere:Connector")
    environment = {"CATALOGUE_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(tmp_path)}
    done = run_python(["manage.py", "check"], environment=os.environ | environment)

    assert done.returncode == 0
    assert "catalogue.W001" in done.stderr
    assert "broken-engine 1.0 (nowhere:Connector)" in done.stderr


# --- refresh_sources ------------------------------------------------------------------------------------


def test_counts_skipped_and_flagged_objects_are_printed(engine, source):
    """A4.3, A5.3, A6.3"""
    engine.workflows = [
        definition(1),
        definition(2, description=None),
        {"name": "no id"},
        definition(3, inputSchema={"type": "array"}),
    ]

    out, err = run("refresh_sources")

    lines = out.splitlines()
    assert err == ""
    assert lines[0].startswith(
        "erp: 2 found, 2 added, 0 updated, 0 returned, 0 missing, 0 held, 2 skipped ("
    ) and lines[0].endswith(" ms)")
    assert lines[1:] == [
        "  skipped wf-2 'report_2': description: Field required",
        "  skipped (no id) 'no id': id: Field required; description: Field required",
        "  flagged wf-3 'report_3': The input schema's type is 'array' instead of \"object\".",
    ]


def test_a_source_that_fails_does_not_keep_the_others_from_being_listed(engine, source):
    """B6"""
    engine.workflows = definitions(1)
    make_source("aaa-dead", base_url=NOWHERE)
    out, err = StringIO(), StringIO()

    with pytest.raises(CommandError, match=r"^Failed: aaa-dead$"):
        call_command("refresh_sources", stdout=out, stderr=err, no_color=True)

    assert err.getvalue().startswith("aaa-dead: Could not connect to 127.0.0.1:9")
    assert "The last good list" not in err.getvalue(), "there has been none"
    assert out.getvalue().startswith("erp: 1 found")


def test_a_refusal_in_the_engines_own_words_ends_before_ours_begin(engine, source):
    """A5.4, B5: and only what was listed once has a list that stays."""
    told = []
    engine.fails_with(401)
    for listed in (False, True):
        if listed:
            engine.recovers()
            run("refresh_sources")
            engine.fails_with(401)
        err = StringIO()
        with pytest.raises(CommandError):
            call_command("refresh_sources", stderr=err, stdout=StringIO(), no_color=True)
        told.append(err.getvalue().strip())
    assert told[0].endswith("(401 Unauthorized).")
    assert told[1] == f"{told[0]} The last good list stays."


def test_only_the_named_sources_are_refreshed_and_unknown_names_refuse_everything(engine, source):
    make_source("dead", base_url=NOWHERE)

    assert run("refresh_sources", "erp")[0].startswith("erp: 0 found")
    with pytest.raises(CommandError, match="No such source: nope, neither"):
        run("refresh_sources", "erp", "nope", "neither")
    assert engine.asked == 1


def test_a_source_that_is_off_is_left_out_or_refused_by_name(engine, source):
    """A4.1"""
    Source.objects.update(enabled=False)

    assert run("refresh_sources") == ("No source is enabled.\n", "")
    err = StringIO()
    with pytest.raises(CommandError, match="Failed: erp"):
        call_command("refresh_sources", "erp", stderr=err, no_color=True)
    assert err.getvalue() == "Source erp is disabled.\n"


# --- enable_workflows, disable_workflows ----------------------------------------------------------------


def test_workflows_are_switched_by_tool_name_name_or_id(source):
    """A4.2"""
    for number, words in enumerate(["tool-1", "Name 2", "id/3"], start=1):
        make_workflow(
            source,
            tool_name=f"tool-{number}",
            name=f"Name {number}",
            upstream_id=f"id/{number}",
            enabled=False,
        )
        assert run("enable_workflows", "--source", "erp", words) == ("Workflows enabled: 1.\n", "")
    assert Workflow.objects.filter(enabled=True).count() == 3

    assert run("enable_workflows", "--source", "erp", "tool-1", "id/1")[0] == "Workflows enabled: 0.\n"
    assert run("disable_workflows", "--source", "erp", "tool-1", "id/3")[0] == "Workflows disabled: 2.\n"


def test_all_of_a_source_that_was_never_listed_says_how_to_list_it(source):
    with pytest.raises(CommandError, match="refresh_sources erp"):
        run("enable_workflows", "--source", "erp", "--all")


def test_all_means_every_present_workflow_of_that_source(source):
    """A4.2, A1.3"""
    make_workflow(source, enabled=False)
    gone = make_workflow(source, enabled=False, missing_since=timezone.now())
    other = make_workflow(enabled=False)

    assert run("enable_workflows", "--source", "erp", "--all")[0] == "Workflows enabled: 1.\n"

    for untouched in (gone, other):
        untouched.refresh_from_db()
        assert not untouched.enabled
    assert run("disable_workflows", "--source", "erp", "--all")[0] == "Workflows disabled: 1.\n"


@pytest.mark.parametrize("command", ["enable_workflows", "disable_workflows"])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--source", "erp"], "Give either names or --all."),
        (["--source", "erp", "--all", "a"], "Give either names or --all."),
        (["--source", "nope", "--all"], "No such source: nope"),
        (["--source", "erp", "known", "unknown"], "No such workflow: unknown"),
        (["known"], "--source"),
    ],
)
def test_what_is_not_clear_changes_nothing(source, command, words, complaint):
    make_workflow(source, name="known", enabled=command == "disable_workflows")
    before = list(Workflow.objects.values())

    with pytest.raises(CommandError, match=complaint):
        run(command, *words)

    assert list(Workflow.objects.values()) == before
