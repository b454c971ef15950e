"""Tool names: fit for every client, unique, and the same for ever."""

import random
import re
import string

import pytest
from django.core.exceptions import ValidationError

from catalogue.actions.workflows import override_workflow
from catalogue.discovery import refresh_source
from catalogue.models import Workflow
from catalogue.naming import MAX_LENGTH, RESERVED, make_tool_name
from tests.catalogue.engine import definition, definitions
from tests.factories import make_workflow

FIT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def name_of(name: str, upstream_id: str = "id-1", taken: set[str] | None = None) -> str:
    return make_tool_name(name=name, upstream_id=upstream_id, source_name="erp", taken=taken or set())


def test_a_name_that_is_taken_gets_the_sources_name_where_the_engine_has_no_other_id():
    """A6.4, B10: tools of two MCP servers are told apart by their servers."""
    assert name_of("search", upstream_id="search") == "search"
    assert name_of("search", upstream_id="search", taken={"search"}) == "search_erp"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("csv_profile", "csv_profile"),
        ("Close the books", "Close_the_books"),
        ("Kündigung prüfen!", "Kundigung_prufen"),
        ("../../etc/passwd", "etc_passwd"),
        ('"; DROP TABLE workflows; --', "DROP_TABLE_workflows"),
        ("<script>alert(1)</script>", "script_alert_1_script"),
        ("日本", "workflow"),
        ("🚀", "workflow"),
        ("🚀 launch", "launch"),
        ("ﬁle", "file"),
        ("a\u202eb\u200bc", "abc"),
        ("...", "workflow"),
        ("n" * 255, "n" * MAX_LENGTH),
    ],
)
def test_names_keep_what_clients_accept(name, expected):
    """B8"""
    assert name_of(name) == expected


@pytest.mark.parametrize(
    ("name", "upstream_id", "taken", "expected"),
    [
        ("Words.count", "Words/count", {"Words.count"}, "Words.count_erp"),
        ("Words.watch", "Words/watch", {"Words.watch"}, "Words.watch_erp"),
        ("count", "Words/count", {"count"}, "Words_count"),
        ("count", "Words/count", {"count", "Words_count"}, "Words_count_erp"),
        ("close books 7", "7", {"close_books_7"}, "close_books_7_erp"),
        ("count", f"Words/{'n' * 57}/count", {"count"}, f"{'n' * 57}_count"),
    ],
)
def test_a_name_that_is_taken_gets_nothing_added_that_it_has_already(name, upstream_id, taken, expected):
    """A6.4."""
    assert name_of(name, upstream_id, taken) == expected


def test_any_name_and_id_make_a_name_that_fits_and_that_nobody_has():
    """B8, A6.4"""
    rng = random.Random(6)
    alphabet = string.printable + "äßé日本語🚀\u202e\u0000"
    taken: set[str] = set()
    for _ in range(3000):
        name = "".join(rng.choices(alphabet, k=rng.choice([0, 1, 2, 64, 255])))
        upstream_id = "".join(rng.choices(alphabet, k=rng.choice([1, 40, 255])))
        made = name_of(name, upstream_id, taken)
        assert FIT.fullmatch(made) and made not in taken and made not in RESERVED, (name, upstream_id)
        taken.add(made)


@pytest.mark.parametrize("reserved", sorted(RESERVED))
def test_a_workflow_named_like_a_built_in_tool_gets_its_id_added(reserved):
    """A2.1, B8"""
    assert name_of(reserved) == f"{reserved}_id-1"


def test_every_built_in_tool_is_reserved():
    """A2.1"""
    from mcp_bridge.builtin_tools import BUILT_IN_TOOLS

    assert set(BUILT_IN_TOOLS) <= RESERVED


def test_the_part_of_a_long_id_that_tells_it_apart_stays():
    """A6.4: ids such as ARNs differ at their end."""
    prefix = "arn:aws:states:eu-west-1:123456789012:stateMachine:"

    assert name_of("run", prefix + "close-books", {"run"}) == "run_6789012_stateMachine_close-books"


@pytest.mark.timeout(20)
def test_thousands_of_names_that_cannot_be_written_are_made_in_no_time():
    """B8: counting up from one for each would take minutes, while nobody else can write."""
    taken: set[str] = set()
    for number in range(10_000):
        taken.add(name_of("日本", "号" * number, taken))

    assert len(taken) == 10_000


@pytest.mark.databases("catalogue.naming")
def test_two_workflows_of_one_name_both_stay_under_names_that_do_not_change(engine, source):
    """A6.4: whatever the order in which the engine lists them later."""
    engine.workflows = [definition(1, name="report"), definition(2, name="report")]
    refresh_source(source)
    names = dict(Workflow.objects.values_list("upstream_id", "tool_name"))
    assert names == {"wf-1": "report", "wf-2": "report_wf-2"}

    engine.workflows.reverse()
    refresh_source(source)
    engine.workflows = [definition(2, name="report"), definition(3, name="report")]
    refresh_source(source)
    engine.workflows = [definition(number, name="report") for number in (3, 2, 1)]
    refresh_source(source)

    names["wf-3"] = "report_wf-3"
    assert dict(Workflow.objects.values_list("upstream_id", "tool_name")) == names


def test_a_workflow_renamed_upstream_keeps_its_tool_name(engine, source):
    """A6.4: agents and their prompts know it."""
    engine.workflows = definitions(1)
    refresh_source(source)
    engine.workflows = [definition(1, name="something else")]
    refresh_source(source)

    workflow = Workflow.objects.get()
    assert (workflow.name, workflow.tool_name) == ("something else", "report_1")


@pytest.mark.databases("catalogue.naming")
def test_the_name_of_a_missing_workflow_is_not_given_to_another(engine, source):
    """A6.4: an agent that still knows the name must not run something else."""
    engine.workflows = [definition(1, name="report")]
    refresh_source(source)
    engine.workflows = [definition(2, name="report")]
    refresh_source(source)

    assert Workflow.objects.get(upstream_id="wf-2").tool_name == "report_wf-2"


@pytest.mark.parametrize("name", ["", "has space", "a" * 65, "schön", "a\n", *sorted(RESERVED)])
def test_a_curator_cannot_give_a_tool_a_name_that_clients_refuse_or_that_is_built_in(db, name):
    """B8, A2.1"""
    workflow = make_workflow()

    with pytest.raises(ValidationError) as refused:
        override_workflow(workflow, tool_name=name)

    assert set(refused.value.message_dict) == {"tool_name"}
    workflow.refresh_from_db()
    assert workflow.tool_name == workflow.name


@pytest.mark.databases("catalogue.naming")
def test_a_curator_cannot_give_a_tool_the_name_of_another(db):
    """A6.4"""
    taken = make_workflow().tool_name

    with pytest.raises(ValidationError, match="has this name"):
        override_workflow(make_workflow(), tool_name=taken)
