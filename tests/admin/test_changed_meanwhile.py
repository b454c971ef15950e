"""A change form that was opened before somebody else saved: what they changed is kept, or told."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model
from django.test import Client, RequestFactory

import config.urls  # noqa: F401 - it registers the pages
from catalogue.actions.workflows import override_workflow
from catalogue.admin.base import CatalogueAdmin
from catalogue.admin.marks import MARK
from catalogue.models import HistoryEntry, ProductSettings, Source, Toolset, Workflow, WorkflowFilter
from catalogue.product_settings import settings_row
from tests.admin.pages import form_values, list_url, page_url, press, text_of, told, undrawn
from tests.admin.window import make_everything
from tests.factories import make_filter, make_source, make_toolset, make_workflow

pytestmark = pytest.mark.django_db


def opened(client: Client, obj: Model) -> dict[str, Any]:
    """What the browser would send back of an object's page if nobody changed anything."""
    with undrawn():
        return sent_back(client.get(page_url(obj)))


def sent_back(page: Any) -> dict[str, Any]:
    sent = form_values(page) | {MARK: page.context_data["mark"]}
    for inline in page.context_data["inline_admin_formsets"]:
        for form in (inline.formset.management_form, *inline.formset.initial_forms):
            values = {field.html_name: field.value() for field in form}
            sent |= {
                name: value for name, value in values.items() if value is not None and value is not False
            }
    return sent


def save(client: Client, obj: Model, sent: dict[str, Any], **typed: Any) -> Any:
    return client.post(page_url(obj), sent | {name.replace("__", "-"): typed[name] for name in typed})


def problems(page: Any) -> str:
    found = page.context["errors"] if page.context else []
    return " ".join(one if isinstance(one, str) else " ".join(one) for one in found)


def test_what_another_tab_saved_meanwhile_is_kept(admin_client):
    """D5: only what was typed in this tab is changed."""
    toolset = make_toolset("finance", rules=["a*"], title="Old", description="Old")
    one, other = opened(admin_client, toolset), opened(admin_client, toolset)
    assert save(admin_client, toolset, one, title="New").status_code == 302
    assert save(admin_client, toolset, other, description="New too").status_code == 302
    toolset.refresh_from_db()
    assert (toolset.title, toolset.description) == ("New", "New too")


def test_what_both_changed_is_told_with_who_and_what_and_saved_the_second_time(admin_client, staff_with):
    """D5: with everything that was typed."""
    picked, toolset = make_workflow(name="picked"), make_toolset("finance", title="Old")
    colleague = staff_with("view_toolset", "change_toolset")
    mine, theirs = opened(admin_client, toolset), opened(colleague, toolset)
    save(colleague, toolset, theirs, title="Theirs", description="Theirs too", picked=[picked.pk])
    page = save(admin_client, toolset, mine, title="Mine", token_budget=7)
    assert page.status_code == 200 and "now: Theirs" in problems(page)
    shown = text_of(page)
    assert "Nothing was saved: the object was changed after you opened the form. member, 20" in shown
    assert "UTC: Changed" in shown and "Saving again overwrites" in shown
    again = sent_back(page)
    assert (again["title"], again["token_budget"], again["description"]) == ("Mine", "7", "Theirs too")
    assert again["picked"] == [picked.pk]
    toolset.refresh_from_db()
    assert (toolset.title, toolset.token_budget) == ("Theirs", None)
    assert save(admin_client, toolset, again).status_code == 302
    toolset.refresh_from_db()
    assert (toolset.title, toolset.description, toolset.token_budget) == ("Mine", "Theirs too", 7)
    assert list(toolset.picked.all()) == [picked]


def test_a_change_of_which_the_history_knows_nothing_is_told_without_a_name(admin_client):
    """D5"""
    toolset = make_toolset("finance")
    mine = opened(admin_client, toolset)
    Toolset.objects.update(title="Theirs", mode="compact")
    workflow = make_workflow(name="picked")
    toolset.picked.add(workflow)
    page = save(admin_client, toolset, mine, title="Mine", picked=[make_workflow().pk], _continue="1")
    assert "opened the form. Saving again" in text_of(page)
    assert "now: Theirs" in problems(page) and "compact" not in problems(page)
    assert f"now: {workflow}" in problems(page)
    assert page.context["adminform"].form["mode"].value() == "compact"


def test_the_same_change_twice_is_no_clash(admin_client):
    """B7: as of a form that is sent twice."""
    toolset = make_toolset("finance")
    mine = opened(admin_client, toolset)
    for _ in range(2):
        assert save(admin_client, toolset, mine, title="Mine").status_code == 302


def test_rules_are_compared_like_fields(admin_client):
    """D5: others' changes of rules stay, and so do rules that they added or deleted."""
    toolset = make_toolset("finance", rules=["a", "b", "c"])
    mine, theirs = opened(admin_client, toolset), opened(admin_client, toolset)
    more = {"rules__3__pattern": "d", "rules__3__action": "include", "rules__3__subject": "name"}
    more |= {"rules__3__syntax": "glob", "rules__3__enabled": "on", "rules__TOTAL_FORMS": 4}
    saved = save(admin_client, toolset, theirs, rules__0__pattern="a2", rules__1__DELETE="on", **more)
    assert saved.status_code == 302
    assert save(admin_client, toolset, mine, rules__0__note="Mine", rules__2__pattern="c2").status_code == 302
    assert list(toolset.rules.values_list("pattern", "note")) == [("a2", "Mine"), ("c2", ""), ("d", "")]
    (entry,) = HistoryEntry.of(toolset)[:1]
    rules_summary = "Changed Note for toolset rule “include name a2”. Changed Pattern for toolset rule"
    assert rules_summary in entry.message, entry.message


def test_rules_that_both_changed_are_told(admin_client):
    """D5: also where one of both deleted them."""
    toolset = make_toolset("finance", rules=["a", "b", "c"])
    mine, theirs = opened(admin_client, toolset), opened(admin_client, toolset)
    save(admin_client, toolset, theirs, rules__0__pattern="a2", rules__1__pattern="b2", rules__2__DELETE="on")
    typed = {"rules__0__pattern": "mine", "rules__1__DELETE": "on", "rules__2__pattern": "c2"}
    page = save(admin_client, toolset, mine, **typed)
    assert page.status_code == 200 and "Nothing was saved" in text_of(page)
    assert "It was changed in the meantime, and is now: a2" in text_of(page)
    assert "The object that you are deleting was changed in the meantime, and is now: Pattern: b2" in text_of(
        page
    )
    assert "A toolset rule that you changed was deleted in the meantime" in text_of(page)
    again = sent_back(page)
    assert save(admin_client, toolset, again).status_code == 302
    assert list(toolset.rules.values_list("pattern", flat=True)) == ["mine"]


def test_overrides_of_a_workflow_are_kept_as_they_are_stored(admin_client):
    """A6: also such as no text can be read back to."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
    workflow = make_workflow(input_schema=schema)
    mine = opened(admin_client, workflow)
    theirs = {
        "tags_override": [],
        "argument_overrides": {"a": {"constant": "x"}},
        "approval_rules": [{"argument": "/n", "is": "over", "value": 7}],
        "read_only_hint": True,
    }
    Workflow.objects.filter(pk=workflow.pk).update(**theirs)
    rows = {
        "argument_overrides-rows": "2",
        "argument_overrides-0-name": "a",
        "argument_overrides-1-name": "n",
    }
    saved = save(admin_client, workflow, mine | rows, title_override="Mine")
    assert saved.status_code == 302, problems(saved)
    workflow.refresh_from_db()
    assert workflow.title == "Mine"
    assert {name: getattr(workflow, name) for name in theirs} == theirs


def test_settings_of_the_product_are_compared_one_by_one(admin_client):
    """A4.4"""
    row = settings_row()
    mine, theirs = opened(admin_client, row), opened(admin_client, row)
    save(admin_client, row, theirs, execution_timeout="42")
    assert save(admin_client, row, mine, max_concurrent_executions="10").status_code == 302
    assert ProductSettings.objects.get().overrides == {
        "execution_timeout": 42,
        "max_concurrent_executions": 10,
    }
    page = save(admin_client, row, mine, execution_timeout="43")
    assert "now: 42" in problems(page)


def test_no_secret_is_in_the_mark(admin_client, ledger_kind):
    """A1: nor anything that was made of one."""
    source = make_source("ledger", kind=ledger_kind, config={"address": "https://ledger.example.com"})
    source.credentials = {"password": "of-the-ledger", "seal": "of\nlines"}
    source.save()
    mark = json.loads(opened(admin_client, source)[MARK])[1]
    assert "setting_address" in mark
    assert not {"setting_password", "setting_token", "setting_seal", "setting_place_key"} & {*mark}
    account = User.objects.create_user("ada", password="of-ada-only")
    assert "password" not in json.loads(opened(admin_client, account)[MARK])[1]


def test_a_source_keeps_its_secret_and_what_others_set(admin_client, ledger_kind):
    """A1: where one curator enters a secret and another a setting; a test of the settings tells it too."""
    source = make_source("ledger", kind=ledger_kind, config={"address": "https://ledger.example.com"})
    source.credentials = {"password": "of-the-ledger"}
    source.save()
    mine, theirs = opened(admin_client, source), opened(admin_client, source)
    saved = save(admin_client, source, theirs, setting_token="a-token", setting_retries="5")
    assert saved.status_code == 302, problems(saved)
    tried = save(admin_client, source, mine, setting_retries="1", _test="1")
    assert "now: 5" in problems(tried)
    assert save(admin_client, source, mine, setting_currency="USD").status_code == 302
    source = Source.objects.get(pk=source.pk)
    assert (source.config["retries"], source.config["currency"]) == (5, "USD")
    assert source.credentials == {"password": "of-the-ledger", "token": "a-token"}


@pytest.mark.parametrize(
    "typed", [{"setting_token": "mine"}, {"setting_seal": "mine\nalso"}, {"forget_token": "on"}]
)
def test_two_who_enter_secrets_at_once_are_told(admin_client, staff_with, ledger_kind, typed):
    """A1, D5: by what the history has, as nothing that was made of a secret is compared."""
    source = make_source("ledger", kind=ledger_kind, config={"address": "https://ledger.example.com"})
    source.credentials = {"password": "of-the-ledger", "token": "first-token"}
    source.save()
    colleague = staff_with("view_source", "change_source")
    mine, theirs = opened(admin_client, source), opened(colleague, source)
    assert save(colleague, source, theirs, setting_token="their-token").status_code == 302
    refused = save(admin_client, source, mine, setting_currency="USD", **typed)
    assert refused.status_code == 200 and "The credentials were changed in the meantime" in problems(refused)
    shown = text_of(refused)
    assert "Nothing was saved: the object was changed after you opened the form. member, 20" in shown
    assert "mine" not in shown and "their-token" not in shown
    again = sent_back(refused)
    assert json.loads(again[MARK])[1].keys() == json.loads(mine[MARK])[1].keys()
    assert Source.objects.get(pk=source.pk).credentials["token"] == "their-token"
    saved = save(admin_client, source, again)
    assert saved.status_code == 302, problems(saved)
    source = Source.objects.get(pk=source.pk)
    assert source.config["currency"] == "USD"
    if "setting_token" in typed:
        assert source.credentials == {"password": "of-the-ledger", "token": "mine"}
    elif "setting_seal" in typed:
        assert source.credentials["seal"] == "mine\nalso" and source.credentials["token"] == "their-token"
    else:
        assert source.credentials == {"password": "of-the-ledger"}


def test_a_secret_kept_with_a_refused_form_is_compared_too(admin_client, ledger_kind):
    """A1, D5: it is none of the fields that are sent again."""
    source = make_source("ledger", kind=ledger_kind, config={"address": "https://ledger.example.com"})
    source.credentials = {"password": "of-the-ledger"}
    source.save()
    mine, theirs = opened(admin_client, source), opened(admin_client, source)
    refused = save(admin_client, source, mine, setting_token="mine", setting_retries="many")
    assert refused.status_code == 200
    assert save(admin_client, source, theirs, setting_token="their-token").status_code == 302
    told_again = save(admin_client, source, sent_back(refused), setting_retries="2")
    assert "The credentials were changed in the meantime" in problems(told_again)
    assert save(admin_client, source, sent_back(told_again)).status_code == 302
    assert Source.objects.get(pk=source.pk).credentials["token"] == "mine"


@pytest.mark.parametrize("mark", ["", "[]", "[1", '["x", {}]', "[1e99, {}]", "[1, 2]", None])
def test_a_form_without_a_mark_that_can_be_read_is_saved_as_it_is(admin_client, mark):
    """B5: as of a script, or of a page of a version before."""
    toolset = make_toolset("finance", title="Old")
    mine = opened(admin_client, toolset)
    Toolset.objects.update(title="Theirs")
    sent = {name: value for name, value in mine.items() if name != MARK} | ({MARK: mark} if mark else {})
    saved = save(admin_client, toolset, sent, description="Mine")
    assert saved.status_code == 302, problems(saved)
    toolset.refresh_from_db()
    assert (toolset.title, toolset.description) == ("Old", "Mine")


def test_buttons_and_people_who_may_only_look_have_no_mark(admin_client, staff_with):
    """B8"""
    source = make_source("engine")
    assert MARK not in text_of(staff_with("view_source").get(page_url(source)))
    assert press(admin_client, source, "refresh_now").status_code == 302
    assert "Nothing was saved" not in told(admin_client.get(page_url(source)))


def test_a_workflow_that_a_rest_client_renamed_keeps_that_name(admin_client):
    """A6.4"""
    workflow = make_workflow(tool_name="report")
    mine = opened(admin_client, workflow)
    override_workflow(workflow, tool_name="weekly_report", alias_days=0)
    assert save(admin_client, workflow, mine, title_override="Mine").status_code == 302
    workflow.refresh_from_db()
    assert (workflow.tool_name, workflow.title_override) == ("weekly_report", "Mine")


TEXTS = forms.TextInput, forms.Textarea, forms.NumberInput


def edited() -> dict[type[Model], CatalogueAdmin]:
    """What has a form to change it."""
    request: Any = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True, is_staff=True)
    return {model: its for model, its in admin.site._registry.items() if its.has_change_permission(request)}


def test_every_change_form_compares_with_what_it_showed(admin_client):
    """B8: so that a new one does not forget it."""
    make_everything(User.objects.get())
    names = {model._meta.model_name for model in edited()}
    assert {"toolset", "workflow", "source", "workflowfilter", "user", "group", "productsettings"} < names
    for model in edited():
        row = next(obj for obj in model._default_manager.order_by("-pk") if not hasattr(obj, "role"))
        page: Any = admin_client.get(page_url(row))
        assert f'name="{MARK}"' in page.content.decode(), model
        sent, form = sent_back(page), page.context["adminform"].form
        at, shown = json.loads(sent[MARK])
        field = next(one for one in form if one.html_name in shown and isinstance(one.field.widget, TEXTS))
        is_number = isinstance(field.field, forms.IntegerField | forms.FloatField)
        before, typed = (70, "71") if is_number else ("othername", "typedname")
        mark = json.dumps([at, shown | {field.html_name: before}])

        def stored(row: Any = row, name: str = field.html_name) -> Any:
            return opened(admin_client, row).get(name)

        kept = save(admin_client, row, sent | {MARK: mark, field.html_name: str(before)})
        assert kept.status_code == 302, (model, problems(kept))
        assert stored() == sent.get(field.html_name), model
        refused = save(admin_client, row, sent | {MARK: mark, field.html_name: typed})
        assert refused.status_code == 200 and "changed in the meantime" in problems(refused), model
        assert sent_back(refused)[field.html_name] == typed, model
        assert stored() == sent.get(field.html_name), model


FILTERS = list_url(WorkflowFilter)


def opened_list(client: Client) -> dict[str, Any]:
    """What the browser would send back of the list of filters if nobody changed anything."""
    return sent_back_list(client.get(FILTERS))


def sent_back_list(page: Any) -> dict[str, Any]:
    formset = page.context["cl"].formset
    found = re.search(r'name="seen" value="([0-9a-f]+)"', page.content.decode())
    sent = {"_save": "Save", MARK: page.context["mark"], "seen": found[1] if found else ""}
    for form in (formset.management_form, *formset.forms):
        sent |= {field.html_name: field.value() for field in form if field.value() not in (None, False)}
    return sent


def place_of(rule: WorkflowFilter, sent: dict[str, Any]) -> str:
    return next(name.removesuffix("-id") for name, key in sent.items() if key == rule.pk and "-id" in name)


def typed_in(sent: dict[str, Any], rule: WorkflowFilter, *, enabled: bool = True, **typed: Any) -> Any:
    place = place_of(rule, sent)
    changed = sent | {f"{place}-{name}": value for name, value in typed.items()}
    return changed if enabled else {name: changed[name] for name in changed if name != f"{place}-enabled"}


def test_rows_of_a_list_keep_what_others_changed_meanwhile(admin_client):
    """A4.2, D5: though their order is another one by then, and one of them is no longer there."""
    first, second, third = (make_filter(f"{name}*", position=place) for place, name in enumerate("abc", 1))
    mine, theirs = opened_list(admin_client), opened_list(admin_client)
    assert admin_client.post(FILTERS, typed_in(theirs, first, position=9)).status_code == 302
    WorkflowFilter.objects.get(pk=second.pk).delete()
    saved = admin_client.post(FILTERS, typed_in(mine, third, enabled=False))
    assert saved.status_code == 302
    assert "A rule was deleted since the list was opened" in told(saved)
    assert "1 exposure rule was changed" in told(saved)
    assert HistoryEntry.of(first).count() == HistoryEntry.of(third).count() == 1
    rows = WorkflowFilter.objects.values_list("pk", "position", "enabled")
    assert list(rows) == [(third.pk, 3, False), (first.pk, 9, True)]


def test_a_list_without_a_row_that_others_deleted_is_asked_about_and_saved(admin_client):
    """A4.2: the rows after the deleted one keep what was typed for them."""
    make_workflow(name="cat")
    rules = [make_filter(f"{name}*", action="exclude", position=place) for place, name in enumerate("abc", 1)]
    mine = opened_list(admin_client)
    WorkflowFilter.objects.get(pk=rules[1].pk).delete()
    asked = admin_client.post(FILTERS, typed_in(mine, rules[2], enabled=False))
    assert "1 workflow would be let through: cat." in text_of(asked)
    assert [row.pk for row in asked.context["cl"].result_list] == [rules[0].pk, rules[2].pk]
    assert admin_client.post(FILTERS, sent_back_list(asked)).status_code == 302
    assert list(WorkflowFilter.objects.values_list("enabled", flat=True)) == [True, False]


def test_what_both_changed_in_a_list_is_told_beside_its_row(admin_client, staff_with):
    """A4.2, D5: with who and what; nothing is saved, and saving again overwrites."""
    first, second = make_filter("a*", position=1), make_filter("b*", position=2)
    colleague = staff_with("view_workflowfilter", "change_workflowfilter")
    mine, theirs = opened_list(admin_client), opened_list(colleague)
    assert colleague.post(FILTERS, typed_in(theirs, first, position=9)).status_code == 302
    page = admin_client.post(FILTERS, typed_in(typed_in(mine, first, position=5), second, position=7))
    assert page.status_code == 200
    assert "Nothing was saved: rows were changed after you opened the form." in text_of(page)
    assert f"{first}: member, 20" in text_of(page)
    shown = page.context["cl"]
    told_at = {form.instance.pk: dict(form.errors) for form in shown.formset.forms}
    assert told_at == {
        first.pk: {"position": ["It was changed in the meantime, and is now: 9"]},
        second.pk: {},
    }
    assert [row.pk for row in shown.result_list] == [form.instance.pk for form in shown.formset.forms]
    assert set(WorkflowFilter.objects.values_list("position", flat=True)) == {2, 9}
    assert admin_client.post(FILTERS, sent_back_list(page)).status_code == 302
    assert dict(WorkflowFilter.objects.values_list("pk", "position")) == {first.pk: 5, second.pk: 7}


def test_the_effect_of_a_list_is_that_of_what_is_saved(admin_client):
    """A4.2: with what others changed meanwhile, which is no change of the person who saves."""
    make_workflow(name="pay")
    rule, other = make_filter("pay*", action="exclude", position=1), make_filter("x*", position=2)
    mine = opened_list(admin_client)
    WorkflowFilter.objects.filter(pk=rule.pk).update(enabled=False)
    saved = admin_client.post(FILTERS, typed_in(mine, other, position=3))
    assert saved.status_code == 302
    assert "1 exposure rule was changed" in told(saved) and not HistoryEntry.of(rule).exists()
    assert list(WorkflowFilter.objects.values_list("enabled", flat=True)) == [False, True]


def test_every_list_that_is_edited_compares_with_what_it_showed():
    """B8: so that a new one does not forget it."""
    lists = {model for model, its in admin.site._registry.items() if its.list_editable}
    assert lists == {WorkflowFilter}


@pytest.mark.databases("catalogue.admin.exposure_rules")
@pytest.mark.django_db(transaction=True)
def test_of_two_lists_saved_at_the_same_moment_one_is_told(admin_client):
    """D5"""
    rule, together = make_filter("a*", position=1), Barrier(2)
    sent = opened_list(admin_client)

    def send(position: int) -> int:
        client = Client()
        client.cookies = admin_client.cookies
        together.wait()
        try:
            return int(client.post(FILTERS, typed_in(sent, rule, position=position)).status_code)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as both:
        assert sorted(both.map(send, (5, 7))) == [200, 302]


@pytest.mark.databases("catalogue.admin.base")
@pytest.mark.django_db(transaction=True)
def test_of_two_saves_at_the_same_moment_one_is_told(admin_client):
    """D5"""
    for model in (Toolset, User):
        row: Any = make_toolset("finance") if model is Toolset else User.objects.create(username="ada")
        field = "title" if model is Toolset else "first_name"
        sent, together = opened(admin_client, row), Barrier(2)

        def send(typed: str, row: Any = row, sent: Any = sent, field: str = field, at: Any = together) -> int:
            client = Client()
            client.cookies = admin_client.cookies
            at.wait()
            try:
                return int(save(client, row, sent, **{field: typed}).status_code)
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as both:
            assert sorted(both.map(send, ("One", "Two"))) == [200, 302], model
