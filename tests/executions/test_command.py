"""`manage.py call_tool`: the same rules from the command line."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from executions.models import Execution, State
from tests.connectors.scripted import replies, sends_and_hangs_up
from tests.executions.engines import RUN_ID, completed, receipt, status
from tests.executions.steps import only

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick_looks")]


def call_tool(*arguments: str) -> str:
    out = StringIO()
    call_command("call_tool", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_a_tool_called_from_the_command_line_leaves_the_same_record(engine, workflow):
    """A2.2, A2.3, B8."""
    engine.on_status = replies(200, completed({"sum": 3}))
    assert json.loads(call_tool("report", '{"numbers": [1, 2]}')) == {"sum": 3}
    execution = only()
    assert execution.succeeded and execution.run_id == RUN_ID
    assert (execution.door, execution.payload.input) == ("command", {"numbers": [1, 2]})


def test_what_comes_from_the_cache_is_printed_alone_and_said_on_standard_error(engine, workflow):
    """E4: a text that goes into a pipe is the engine's alone."""
    Workflow.objects.update(cache_seconds=600, read_only_hint=True)
    forget_catalogue()
    engine.on_status = replies(200, completed("all is well"))
    assert call_tool("report") == "all is well\n"
    out, err = StringIO(), StringIO()
    call_command("call_tool", "report", stdout=out, stderr=err)
    assert (out.getvalue(), engine.count("start")) == ("all is well\n", 1)
    assert "From the result cache" in err.getvalue()


def test_a_run_that_fails_ends_the_command_with_the_reason(engine, workflow):
    """A2.4, A7.4."""
    engine.on_status = replies(200, status("FAILED", error="no paper"))
    with pytest.raises(CommandError, match="no paper"):
        call_tool("report")
    assert only().state == State.FAILED


def test_a_start_of_unknown_outcome_warns_against_calling_again(engine, workflow):
    """A2.4: words a user understands."""
    engine.on_start = sends_and_hangs_up()
    with pytest.raises(CommandError, match="Do not call it again"):
        call_tool("report")
    assert only().state == State.UNCONFIRMED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "[1]"), "must be a JSON object"),
        (("report", "{"), "not valid JSON"),
        (("no_such_tool",), r"Unknown or disabled tool: no_such_tool\. list_tools shows"),
        (("get_workflow_info", '{"name": "no_such_tool"}'), r"no_such_tool\. list_tools shows"),
    ],
)
def test_a_call_that_cannot_be_made_records_nothing(engine, workflow, arguments, message):
    """A2.5, B5."""
    engine.on_start = replies(200, receipt())
    with pytest.raises(CommandError, match=message):
        call_tool(*arguments)
    assert not Execution.objects.exists() and engine.requests == []
