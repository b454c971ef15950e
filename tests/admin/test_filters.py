"""Filters in the admin: the order that decides, and what each of them does."""

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from catalogue.exposure import load_exposed_catalogue
from catalogue.models import Revision, WorkflowFilter
from tests.admin.pages import add_url, form_at, form_values, list_url, page_url, run_action, text_of
from tests.factories import make_filter, make_source, make_workflow, make_workflows

pytestmark = pytest.mark.django_db

NEW = {
    "action": "exclude",
    "subject": "name",
    "syntax": "glob",
    "pattern": "pay*",
    "position": "1",
    "enabled": "on",
}


def save_twice(client: Client, url: str, given: dict[str, Any]) -> Any:
    """The first time the page shows what would change."""
    asked = client.post(url, given)
    assert asked.status_code == 200 and "Not saved yet." in text_of(asked)
    found = re.search(r'name="seen" value="([0-9a-f]+)"', asked.content.decode())
    assert found
    return client.post(url, given | {"seen": found[1]})


def test_an_include_filter_shows_what_it_hides_before_it_is_saved(admin_client):
    """A4.2: it hides all that it does not name."""
    make_workflow(name="pay_all")
    make_workflow(name="report")
    include = NEW | {"action": "include"}
    asked = admin_client.post(add_url(WorkflowFilter), include)
    shown = text_of(asked)
    assert "Not saved yet. 1 workflow would be hidden: report. Save again" in shown
    assert "1 would be hidden report" in shown
    assert set(load_exposed_catalogue().workflows) == {"pay_all", "report"}
    confirmed = form_values(asked)
    assert admin_client.post(add_url(WorkflowFilter), confirmed).status_code == 302
    assert set(load_exposed_catalogue().workflows) == {"pay_all"}


def test_what_was_shown_before_is_shown_again_once_it_differs(admin_client):
    """A4.2: a workflow that came in between is not hidden unseen."""
    make_workflow(name="report")
    include = NEW | {"action": "include"}
    asked = form_values(admin_client.post(add_url(WorkflowFilter), include))
    make_workflow(name="another")
    again = admin_client.post(add_url(WorkflowFilter), asked)
    assert "2 workflows would be hidden: another, report." in text_of(again)
    assert not WorkflowFilter.objects.exists()


def test_deleting_a_filter_tells_what_that_lets_through(admin_client):
    """A4.2: one and several."""
    make_workflow(name="pay_all")
    rule = make_filter("pay*", action="exclude")
    lets_through = "1 workflow would be let through: pay_all."
    page = admin_client.get(reverse("admin:catalogue_workflowfilter_delete", args=[rule.pk]))
    assert lets_through in text_of(page)
    assert lets_through in text_of(run_action(admin_client, "delete_selected", rule))


def test_a_filter_is_added_and_applies_at_once(admin_client):
    """A4.2, A4.4."""
    make_workflow(name="pay_all")
    revision = Revision.current()
    assert save_twice(admin_client, add_url(WorkflowFilter), NEW).status_code == 302
    assert not load_exposed_catalogue().workflows
    assert Revision.current() > revision


def test_a_pattern_that_cannot_be_compiled_is_explained_at_its_field(admin_client):
    """A4.2, B4: also one that could take for ever."""
    given = NEW | {"syntax": "regex", "pattern": "(?=x)"}
    response = admin_client.post(add_url(WorkflowFilter), given)
    assert "look-arounds" in " ".join(response.context["adminform"].form.errors["pattern"])
    assert not WorkflowFilter.objects.exists()


@pytest.mark.databases("catalogue.admin.exposure_rules")
def test_a_new_filter_comes_last(admin_client):
    """A4.2: the first match decides, so an addition overrules nothing by accident."""
    make_filter("a", position=40)
    form = admin_client.get(add_url(WorkflowFilter)).context["adminform"].form
    assert form["position"].value() == 50


@pytest.mark.databases("catalogue.admin.exposure_rules")
def test_the_order_is_changed_in_the_list(admin_client):
    """A4.2: positions and switches are edited where the whole chain is in view."""
    make_workflow(name="pay_all")
    exclude = make_filter("*", action="exclude", position=1)
    include = make_filter("pay*", action="include", position=2)
    assert not load_exposed_catalogue().workflows
    given = {
        "form-TOTAL_FORMS": "2",
        "form-INITIAL_FORMS": "2",
        "form-0-id": exclude.pk,
        "form-0-position": "3",
        "form-0-enabled": "on",
        "form-1-id": include.pk,
        "form-1-position": "2",
        "form-1-enabled": "on",
        "_save": "Save",
    }
    assert save_twice(admin_client, list_url(WorkflowFilter), given).status_code == 302
    assert list(load_exposed_catalogue().workflows) == ["pay_all"]


def test_a_filter_that_cannot_be_used_is_marked_and_can_be_switched_off_in_the_list(admin_client):
    """B6: one that was loaded from a file, which checks nothing."""
    make_workflow(name="pay_all")
    rule = make_filter("(?=x)", action="exclude", syntax="regex", position=1)
    shown = text_of(admin_client.get(list_url(WorkflowFilter)))
    assert "exclude name (?=x) invalid: hides each workflow that reaches it" in shown
    assert "1 hidden pay_all" in shown
    assert "1 hidden because of it pay_all" in text_of(admin_client.get(page_url(rule)))
    given = {
        "form-TOTAL_FORMS": "1",
        "form-INITIAL_FORMS": "1",
        "form-0-id": rule.pk,
        "form-0-position": "1",
        "_save": "Save",
    }
    assert save_twice(admin_client, list_url(WorkflowFilter), given).status_code == 302
    assert list(load_exposed_catalogue().workflows) == ["pay_all"]


def test_the_list_previews_what_the_chain_lets_through(admin_client):
    """A4.2: numbers and the first names, of what is otherwise ready to be exposed."""
    source = make_source()
    make_workflows(23, source)
    make_workflow(source, name="pay_all")
    make_workflow(source, name="pay_none", enabled=False)
    make_filter("pay*", action="exclude")
    shown = text_of(admin_client.get(list_url(WorkflowFilter)))
    assert "23 let through" in shown
    assert "and 3 more" in shown
    assert "1 hidden pay_all" in shown


def test_a_filters_page_shows_what_it_alone_changes(admin_client):
    """A4.2: others that hide the same workflow are not blamed on it."""
    make_workflow(name="pay_all")
    make_workflow(name="pay_secret")
    make_filter("*secret", action="exclude", position=1)
    rule = make_filter("pay*", action="exclude", position=2)
    shown = text_of(admin_client.get(page_url(rule)))
    assert "What this rule changes" in shown
    assert "1 hidden because of it pay_all" in shown
    assert "pay_secret" not in shown


def test_a_switched_off_filter_shows_what_it_would_change(admin_client):
    """A4.2: a preview before agents notice anything."""
    make_workflow(name="other")
    make_workflow(name="pay_all")
    rule = make_filter("pay*", action="include", enabled=False)
    shown = text_of(admin_client.get(page_url(rule)))
    assert "would change if it were enabled" in shown
    assert "1 hidden because of it other" in shown
    assert set(load_exposed_catalogue().workflows) == {"other", "pay_all"}


def test_deleted_filters_stop_to_apply_and_agents_notice(admin_client):
    """A4.4: in bulk as well."""
    rules = [make_filter("a*", action="exclude"), make_filter("b*", action="exclude")]
    revision = Revision.current()
    keys = [rule.pk for rule in rules]
    given = {"action": "delete_selected", "_selected_action": keys, "post": "yes"}
    admin_client.post(list_url(WorkflowFilter), given)
    assert not WorkflowFilter.objects.exists()
    assert Revision.current() > revision


def test_the_form_says_what_a_pattern_is_matched_with(admin_client):
    """A4.2."""
    shown = text_of(admin_client.get(add_url(WorkflowFilter)))
    assert "The name is the engine's" in shown
    assert "Case-sensitive." in shown


def test_the_question_before_saving_is_no_error(admin_client):
    """A4.2: nothing was done wrong, so that the page does not say so; of the form and of the list."""
    make_workflow(name="pay_all")
    rule = make_filter("pay*", action="exclude")
    page = form_at(admin_client, page_url(rule))
    asked = text_of(admin_client.post(page_url(rule), page | {"pattern": "x*"}))
    assert "Not saved yet." in asked and "Please correct" not in asked
    row = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": rule.pk, "form-0-position": 1}
    listed = text_of(admin_client.post(list_url(WorkflowFilter), row | {"_save": "Save"}))
    assert "Not saved yet." in listed and "Please correct" not in listed
    assert WorkflowFilter.objects.get().enabled


def test_what_is_typed_is_previewed_without_being_saved(admin_client):
    """A4.2: what the pattern matches, what would change, and that a first include filter hides the rest."""
    for name in ("pay_all", "pay_one", "report"):
        make_workflow(name=name)
    url = reverse("admin:catalogue_workflowfilter_preview_new")
    shown = text_of(admin_client.post(url, NEW | {"action": "include"}))
    assert "2 matched, regardless of other rules pay_all pay_one" in shown
    assert "1 would be hidden report" in shown and "0 would be let through" in shown
    assert "The first include rule hides every workflow" in shown
    assert "Type a pattern" in text_of(admin_client.post(url, NEW | {"pattern": ""}))
    assert "Pattern:" in text_of(admin_client.post(url, NEW | {"pattern": "(", "syntax": "regex"}))
    rule = make_filter("pay*")
    again = reverse("admin:catalogue_workflowfilter_preview", args=[rule.pk])
    changed = text_of(admin_client.post(again, NEW | {"action": "include", "pattern": "report"}))
    assert "1 would be let through report" in changed and "first include" not in changed
    assert WorkflowFilter.objects.get().pattern == "pay*"
    make_filter("report", action="include", position=1)
    rule.action, rule.position = "include", 2
    rule.save()
    at_its_place = NEW | {"action": "include", "pattern": "*port", "position": "2"}
    shown = text_of(admin_client.post(again, at_its_place))
    assert "2 would be hidden pay_all pay_one" in shown and "Not saved yet." not in shown
