"""Running a workflow by hand: the form made of its input schema, and running an execution again."""

import json
import shlex
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from catalogue.actions.toolsets import write_toolset
from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from executions.models import Execution
from tests.admin.pages import page_url, press, text_of
from tests.factories import make_execution, make_source, make_toolset, make_workflow

pytestmark = pytest.mark.django_db

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "In your words."},
        "amount": {"type": "number", "minimum": 1},
        "count": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "colour": {"enum": ["red", 5]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"$ref": "#/$defs/number"}},
        "person": {"type": "object", "properties": {"age": {"type": "integer"}}},
        "tenant": {"type": "string"},
    },
    "required": ["note", "tenant"],
    "$defs": {"number": {"type": "integer"}},
}


class Controls(HTMLParser):
    """What the browser sends of the page's form, in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sent: dict[str, str] = {}
        self.open = ""  # The text area or selection
        self.feed(page[page.index('id="run-form"') :])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        name, value = own.get("name") or "", own.get("value") or ""
        if tag in ("textarea", "select") and name:
            self.open, self.sent[name] = name, ""
        elif tag == "option" and "selected" in own:
            self.sent[self.open] = value
        elif tag == "input" and name and own.get("type") not in ("checkbox", "file"):
            self.sent[name] = value

    def handle_data(self, text: str) -> None:
        if self.lasttag == "textarea" and self.open:
            self.sent[self.open] = text.removeprefix("\n")
            self.open = ""


def sent_by(page: Any) -> dict[str, str]:
    return Controls(page.content.decode()).sent


def run_url(workflow: Workflow) -> str:
    return reverse("admin:executions_run", args=[workflow.pk])


def filled(client: Client, address: str, **typed: str) -> dict[str, str]:
    """What the browser sends, with some arguments typed."""
    sent = sent_by(client.get(address))
    return sent | {
        name if name in sent or name == "sure" else f"argument/{name}": text for name, text in typed.items()
    }


def run(client: Client, workflow: Workflow, **typed: str) -> Any:
    return client.post(run_url(workflow), filled(client, run_url(workflow), **typed))


def change(client: Client, workflow: Workflow, sent: dict[str, str], *changes: str) -> dict[str, str]:
    """What the browser would send after a click on these buttons."""
    for one in changes:
        sent = sent_by(client.post(run_url(workflow), sent | {"change": one}))
    return sent


def problems_in(page: Any) -> dict[str, str]:
    return {part.name: " ".join(part.problems) for part in page.context["form"].arguments.wrong}


def test_a_workflow_runs_with_what_is_typed_in_a_field_for_each_argument(admin_client):
    """Recorded with the admin as its door; what the catalogue sets is added."""
    workflow = make_workflow(input_schema=SCHEMA, argument_overrides={"tenant": {"constant": "acme"}})
    page = text_of(admin_client.get(run_url(workflow)))
    assert "note string, required" in page and "In your words." in page and "tenant" not in page
    typed = {
        "note": "5\r\nlines",
        "amount": "2.5",
        "count": "3",
        "urgent": "false",
        "colour": "5",
        "day": "2026-02-01",
        "at": "2026-02-01T08:30:00",
        "tags/0": "a",
        "tags/1": "b c",
        "numbers/0": "1",
        "numbers/1": "2",
        "person/age": "7",
    }
    response = run(admin_client, workflow, **typed)
    execution = Execution.objects.get()
    assert response.headers["Location"] == page_url(execution)
    assert execution.payload.input == {
        "note": "5\nlines",
        "amount": 2.5,
        "count": 3,
        "urgent": False,
        "colour": 5,
        "day": "2026-02-01",
        "at": "2026-02-01T08:30:00+00:00",
        "tags": ["a", "b c"],
        "numbers": [1, 2],
        "person": {"age": 7},
        "tenant": "acme",
    }
    assert (execution.door, execution.caller_name) == ("admin", "admin")
    assert execution.caller == f"user:{User.objects.get().pk}"

    again = f"{run_url(workflow)}?again={execution.pk}"
    assert f'href="{again}"' in admin_client.get(page_url(execution)).content.decode()
    admin_client.post(run_url(workflow), filled(admin_client, again, count="4"))
    second = Execution.objects.exclude(pk=execution.pk).get()
    assert second.payload.input == execution.payload.input | {"count": 4}
    assert text_of(admin_client.get(page_url(workflow))).count("admin, admin") == 2


def test_what_is_wrong_is_told_beside_its_field_and_nothing_starts(admin_client):
    """A2.5"""
    workflow = make_workflow(input_schema=SCHEMA, argument_overrides={"tenant": {"constant": "acme"}})
    told = problems_in(run(admin_client, workflow, amount="0", count="x"))
    assert told.keys() == {"/count"} and "not a JSON value of the type integer" in told["/count"]
    refused = run(admin_client, workflow, amount="0", **{"person/age": "old", "tags/0": "a"})
    assert problems_in(refused).keys() == {"/person/age"}
    assert sent_by(refused)["argument/person/age"] == "old"
    refused = run(admin_client, workflow, amount="0", **{"numbers/0": "1", "numbers/1": "1.5", "day": "soon"})
    told = problems_in(refused)
    assert told.keys() == {"/note", "/amount", "/numbers/1", "/day"}
    assert told["/note"] == "required, but missing" and "date" in told["/day"]
    assert 'href="#argument/numbers/1"' in refused.content.decode()
    assert sent_by(refused)["argument/numbers/1"] == "1.5"
    assert not Execution.objects.exists()


def test_arguments_can_be_written_as_json_and_go_there_and_back(admin_client):
    """For what a schema takes and no field shows."""
    workflow = make_workflow(input_schema=SCHEMA | {"required": ["note"]})
    sent = filled(admin_client, run_url(workflow), note="a", count="3")
    as_json = change(admin_client, workflow, sent, "json ")
    assert as_json["json"] == '{\n  "note": "a",\n  "count": 3\n}'
    odd = {"note": "a", "count": 4, "else": None, "tags": [], "person": {"age": 7, "more": [1]}}
    in_fields = change(admin_client, workflow, as_json | {"json": json.dumps(odd)}, "fields ")
    assert in_fields["json/tags"] == "[]" and in_fields["argument/person/age"] == "7"
    again = change(admin_client, workflow, in_fields, "json ")
    assert json.loads(again["json"]) == odd
    unreadable = admin_client.post(run_url(workflow), again | {"json": "{", "change": "fields"})
    assert problems_in(unreadable).keys() == {""} and sent_by(unreadable)["json"] == "{"
    half = "/note contains half of a surrogate pair"
    mistakes = {"{": "The JSON cannot be read.", "[]": "Enter a JSON object", r'{"note": "\ud83d"}': half}
    for broken, problem in mistakes.items():
        assert problem in text_of(admin_client.post(run_url(workflow), again | {"json": broken}))
    admin_client.post(run_url(workflow), in_fields)
    assert Execution.objects.get().payload.input == odd


def test_a_form_that_is_sent_twice_runs_once(admin_client):
    """Filled in with something else after going back, it runs again."""
    workflow = make_workflow()
    sent = filled(admin_client, run_url(workflow)) | {"json": '{"a": 1}'}
    addresses = {admin_client.post(run_url(workflow), sent).headers["Location"] for _ in range(2)}
    assert len(addresses) == 1
    assert admin_client.post(run_url(workflow), sent | {"json": '{"a": 2}'}).status_code == 302
    assert Execution.objects.count() == 2


def test_what_may_delete_is_run_only_by_somebody_who_says_so(admin_client):
    workflow = make_workflow(destructive_hint=True)
    assert "Confirm that you want to run it" in text_of(run(admin_client, workflow))
    assert not Execution.objects.exists()
    assert run(admin_client, workflow, sure="on").status_code == 302


def test_who_may_run_and_who_may_try_what_agents_do_not_see(staff_with):
    """B8: the right to run is one of its own; a hidden workflow is for those who could expose it."""
    hidden, shown = make_workflow(enabled=False), make_workflow()
    off = make_workflow(make_source(enabled=False))
    client = staff_with("view_workflow", "view_execution")
    assert client.get(run_url(shown)).status_code == 403
    assert (
        reverse("admin:executions_run", args=[shown.pk]) not in client.get(page_url(shown)).content.decode()
    )
    user = User.objects.get()
    user.user_permissions.add(*_permissions("add_execution"))
    assert run(client, shown).status_code == 302
    assert "Unknown or disabled tool" in text_of(run(client, hidden))
    user.user_permissions.add(*_permissions("change_workflow"))
    assert run(client, hidden).status_code == 302
    assert "Unknown or disabled tool" in text_of(run(client, off))
    user.user_permissions.remove(*_permissions("view_workflow", "change_workflow"))
    assert client.get(run_url(shown)).status_code == 403


def test_an_operator_runs_what_is_exposed_only_in_toolsets_that_they_may_use(staff_with):
    """Without the permission to run hidden workflows."""
    pay = make_workflow(name="pay", only_in_toolsets=True)
    client = staff_with("view_workflow", "view_execution", "add_execution")
    assert "Unknown or disabled tool" in text_of(run(client, pay)), "no toolset shows it"
    team = make_toolset("team", picked=[pay])
    assert run(client, pay).status_code == 302
    User.objects.create(username="somebody-else")
    write_toolset(team, reserved_for=["user:somebody-else"])
    forget_catalogue()
    assert "Unknown or disabled tool" in text_of(run(client, pay))
    write_toolset(team, reserved_for=[], enabled=False)
    forget_catalogue()
    assert "Unknown or disabled tool" in text_of(run(client, pay))
    assert Execution.objects.get().toolset == ""


def _permissions(*codenames: str) -> Any:
    return Permission.objects.filter(codename__in=codenames)


NESTED: dict[str, Any] = {
    "type": "object",
    "required": ["lines", "pay"],
    "properties": {
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "customer": {
            "type": "object",
            "required": ["mail"],
            "properties": {"mail": {"type": "string", "format": "email"}},
        },
        "pay": {
            "oneOf": [
                {
                    "title": "By card",
                    "type": "object",
                    "required": ["type", "number"],
                    "properties": {"type": {"const": "card"}, "number": {"type": "string", "minLength": 4}},
                },
                {
                    "title": "By invoice",
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"const": "invoice"}, "days": {"type": "integer"}},
                },
            ]
        },
        "parent": {"$ref": "#/$defs/node"},
        "maybe": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        "free": {"type": "object"},
    },
    "$defs": {
        "line": {
            "type": "object",
            "required": ["item"],
            "properties": {"item": {"type": "string"}, "count": {"type": "integer", "default": 2}},
        },
        "node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "parent": {"$ref": "#/$defs/node"}},
        },
    },
}


def test_objects_rows_and_alternatives_have_fields_that_are_added_moved_and_removed(admin_client):
    workflow = make_workflow(input_schema=NESTED)
    sent = filled(admin_client, run_url(workflow))
    assert not any(name.startswith("argument/lines/") for name in sent)
    sent = change(admin_client, workflow, sent, "add /lines", "add /lines", "add /lines", "open /customer")
    for number, item in enumerate("abc"):
        sent[f"argument/lines/{number}/item"] = item
    sent |= {"argument/pay/choice": "0", "argument/customer/mail": "someone@example.com"}
    sent = change(admin_client, workflow, sent, "up /lines/2", "remove /lines/0", "show ")
    assert [sent[f"argument/lines/{number}/item"] for number in range(2)] == ["c", "b"]
    sent = change(
        admin_client, workflow, sent | {"argument/pay/0/number": "1"}, "open /parent", "open /parent/parent"
    )
    refused = admin_client.post(run_url(workflow), sent)
    assert problems_in(refused).keys() == {"/pay/0/number"}
    valid = sent | {"argument/pay/0/number": "1234"}
    assert admin_client.post(run_url(workflow), valid, headers={"HX-Request": "true"}).status_code == 200
    assert not Execution.objects.exists()
    # What was typed for one alternative is there again after a look at another.
    sent = change(admin_client, workflow, sent | {"argument/pay/choice": "1"}, "show ")
    assert "argument/pay/1/days" in sent
    sent = change(admin_client, workflow, sent | {"argument/pay/choice": "0"}, "show ")
    assert sent["argument/pay/0/number"] == "1"
    sent |= {
        "argument/pay/0/number": "1234",
        "argument/parent/parent/name": "root",
        "argument/free": '{"a": 1}',
    }
    assert admin_client.post(run_url(workflow), sent).status_code == 302
    execution = Execution.objects.get()
    assert execution.payload.input == {
        "lines": [{"item": "c"}, {"item": "b"}],
        "pay": {"type": "card", "number": "1234"},
        "customer": {"mail": "someone@example.com"},
        "parent": {"parent": {"name": "root"}},
        "free": {"a": 1},
    }
    again = filled(admin_client, f"{run_url(workflow)}?again={execution.pk}")
    assert again["argument/pay/choice"] == "0" and again["argument/pay/0/number"] == "1234"
    admin_client.post(run_url(workflow), again)
    second = Execution.objects.exclude(pk=execution.pk).get()
    assert second.payload.input == execution.payload.input


def test_one_part_alone_can_be_written_as_json(admin_client):
    """What fits no field stays so, and the rest keeps its fields."""
    workflow = make_workflow(input_schema=NESTED)
    sent = change(
        admin_client, workflow, filled(admin_client, run_url(workflow)), "add /lines", "json /lines"
    )
    assert json.loads(sent["json/lines"]) == [{}]
    sent |= {"json/lines": '[{"item": "a", "extra": 1}, 5]', "argument/maybe": "3"}
    sent = change(admin_client, workflow, sent, "fields /lines")
    assert (sent["argument/lines/0/item"], sent["json/lines/0/"]) == ("a", '{\n  "extra": 1\n}')
    assert (sent["json/lines/1"], sent["argument/maybe"]) == ("5", "3")


def test_a_forged_change_or_name_changes_nothing(admin_client):
    workflow = make_workflow(input_schema=NESTED)
    sent = filled(admin_client, run_url(workflow))
    strange = ["up /nothing/3", "remove /lines/9", "add lines", "fields /lines", "json /a/~", "?", ""]
    names = {"argument/lines/choice/x": "1", "argument/~": "1", "argument/pay": "{", "json//": "1"}
    for one in strange:
        assert admin_client.post(run_url(workflow), sent | names | {"change": one}).status_code == 200
    assert admin_client.post(run_url(workflow), sent | names).status_code == 200
    assert not Execution.objects.exists()


def test_an_example_is_filled_in_around_what_is_typed(admin_client):
    workflow = make_workflow(input_schema=NESTED)
    sent = filled(admin_client, run_url(workflow), maybe="7")
    sent = change(admin_client, workflow, sent, "example")
    assert (sent["argument/lines/0/count"], sent["argument/maybe"]) == ("2", "7")
    assert sent["argument/customer/mail"] == "someone@example.com"
    assert admin_client.post(run_url(workflow), sent).status_code == 302
    given = {"type": "object", "properties": {"a": {"type": "integer"}}, "examples": [{"a": 12}]}
    stated = make_workflow(input_schema=given)
    sent = change(admin_client, stated, filled(admin_client, run_url(stated)), "example")
    assert sent["argument/a"] == "12"


def test_a_format_is_checked_in_the_form_and_nowhere_else(admin_client):
    """The engine may accept it, so that JSON goes through."""
    workflow = make_workflow(
        input_schema={"type": "object", "properties": {"mail": {"type": "string", "format": "email"}}}
    )
    sent = filled(admin_client, run_url(workflow), mail="not-an-email")
    refused = admin_client.post(run_url(workflow), sent)
    assert problems_in(refused).keys() == {"/mail"} and not Execution.objects.exists()
    as_json = change(admin_client, workflow, sent, "json /mail")
    assert admin_client.post(run_url(workflow), as_json).status_code == 302


def test_many_values_are_searched_in_and_files_have_a_chooser(admin_client):
    names = [f"region {number}" for number in range(40)]
    file = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
    schema = {"type": "object", "properties": {"region": {"enum": names}, "picture": file}}
    workflow = make_workflow(input_schema=schema)
    page = admin_client.get(run_url(workflow)).content.decode()
    assert 'list="argument/region_options"' in page and page.count("<option") == 40
    assert 'data-encoding="base64"' in page and 'accept="image/png"' in page
    run(admin_client, workflow, region="region 3", picture="aGk=")
    assert Execution.objects.get().payload.input == {"region": "region 3", "picture": "aGk="}
    assert problems_in(run(admin_client, workflow, region="elsewhere")).keys() == {"/region"}


def test_the_values_can_be_copied_as_calls(admin_client, settings):
    settings.PUBLIC_URL = "https://catalogue.example"
    workflow = make_workflow(input_schema=SCHEMA, tool_name="say_it")
    sent = filled(admin_client, run_url(workflow), note="it's", count="3")
    tool = admin_client.post(run_url(workflow), sent | {"change": "tool"}).context["copied"]
    call = json.loads(tool)
    assert call["method"] == "tools/call"
    assert call["params"] == {"name": "say_it", "arguments": {"note": "it's", "count": 3}}
    curl = shlex.split(admin_client.post(run_url(workflow), sent | {"change": "curl"}).context["copied"])
    assert f"https://catalogue.example{reverse('execution-list')}" in curl
    assert json.loads(curl[-1]) == {"tool": "say_it", "arguments": {"note": "it's", "count": 3}}
    unreadable = admin_client.post(run_url(workflow), sent | {"change": "curl", "argument/count": "x"})
    assert not unreadable.context["copied"] and problems_in(unreadable).keys() == {"/count"}


def test_a_curator_tests_what_the_statistics_do_not_count(staff_with):
    """They see the result of their own tests and of nothing else."""
    client = staff_with("view_workflow", "change_workflow")
    workflow, other = make_workflow(enabled=False), make_execution()
    assert run_url(workflow) in client.get(page_url(workflow)).content.decode()
    started = run(client, workflow)
    test = Execution.objects.exclude(pk=other.pk).get()
    assert (test.door, started.headers["Location"]) == ("test", page_url(test))
    assert client.get(page_url(test)).status_code == 200
    live = reverse("admin:executions_execution_live", args=[test.pk])
    payload = reverse("admin:executions_execution_payload", args=[test.pk, "input"])
    assert client.get(live).context and client.get(payload).status_code == 200
    assert client.get(f"{run_url(workflow)}?again={test.pk}").status_code == 200
    for theirs in (other, make_execution(door="test", workflow=workflow)):
        assert client.get(page_url(theirs)).status_code == 403
        assert press(client, theirs, "cancel").status_code == 403
        assert (
            client.get(reverse("admin:executions_execution_payload", args=[theirs.pk, "input"])).status_code
            == 403
        )
        assert client.get(f"{run_url(theirs.workflow)}?again={theirs.pk}").status_code == 403
        gone = client.get(reverse("admin:executions_execution_live", args=[theirs.pk]))
        assert gone.context is None
    User.objects.get().user_permissions.remove(*_permissions("change_workflow"))
    assert client.get(page_url(test)).status_code == 403


@pytest.mark.django_db(transaction=True)
def test_a_curator_cancels_a_test_of_their_own(staff_with):
    client, workflow = staff_with("view_workflow", "change_workflow"), make_workflow()
    run(client, workflow)
    test = Execution.objects.get()
    assert "Cancel this execution?" in client.get(page_url(test)).content.decode()
    assert press(client, test, "cancel").status_code == 302
    test.refresh_from_db()
    assert (test.state, test.cancel_requested_by) == ("cancelled", "member")
    theirs = make_execution(door="test", workflow=workflow, state="running")
    assert press(client, theirs, "cancel").status_code == 403


def test_who_may_both_run_and_test_chooses(admin_client):
    workflow = make_workflow()
    run(admin_client, workflow)
    admin_client.post(run_url(workflow), filled(admin_client, run_url(workflow)) | {"test": "1"})
    assert sorted(Execution.objects.values_list("door", flat=True)) == ["admin", "test"]
    listed = reverse("admin:executions_execution_changelist")
    assert admin_client.get(listed).context["cl"].result_count == 2
    assert admin_client.get(listed, {"door__exact": "test"}).context["cl"].result_count == 1


def _loop(members: int) -> dict[str, Any]:
    names = [f"p{number}" for number in range(members)]
    schema = {"type": "object", "required": names, "properties": {name: {"$ref": "#"} for name in names}}
    return schema | {"allOf": [{"$ref": "#"}] * 50}


HARD: list[Any] = [
    "",
    "null",
    "5",
    " a\nb",
    "<b>",
    "\n",
    None,
    True,
    2**70,
    1.5,
    [],
    {},
    [[]],
    {"": 1, "~/": "0"},
]


@pytest.mark.parametrize("kind", ["string", "integer", ["string", "null"], "array", "object", None])
def test_each_value_comes_back_from_the_form_as_it_was(admin_client, kind):
    """Also those that do not fit the schema, as an earlier run may have had."""
    whole = {"type": kind, "items": {"type": "string"}, "properties": {"choice": {"type": "string"}}}
    part = {word: value for word, value in whole.items() if value and kind}
    workflow = make_workflow(
        input_schema={"type": "object", "properties": {f"a/{at}": part for at in range(len(HARD))}}
    )
    values = {f"a/{at}": value for at, value in enumerate(HARD)}
    earlier = make_execution(workflow, payload={"input": values})
    sent = filled(admin_client, f"{run_url(workflow)}?again={earlier.pk}")
    assert json.loads(change(admin_client, workflow, sent, "json")["json"]) == values


@pytest.mark.parametrize("members", [3, 300, 3_000])
def test_a_schema_that_never_ends_makes_no_endless_form(admin_client, members):
    workflow = make_workflow(input_schema=_loop(members))
    sent = filled(admin_client, run_url(workflow))
    assert len(sent) < 1_000  # Django's limit
    assert len(change(admin_client, workflow, sent, "example")) < 1_000
