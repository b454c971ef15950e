"""Filters in the admin: the order that decides, and what each of them does."""

import pytest
from django.test import Client

from catalogue.exposure import load_exposed_catalogue
from catalogue.models import Revision, WorkflowFilter
from tests.admin.conftest import StaffWith
from tests.admin.pages import add_url, list_url, page_url, run_action, text_of
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


def test_a_filter_is_added_and_applies_at_once(admin_client: Client) -> None:
    """A4.2, A4.4."""
    make_workflow(name="pay_all")
    revision = Revision.current()
    assert admin_client.post(add_url(WorkflowFilter), NEW).status_code == 302
    assert not load_exposed_catalogue().workflows
    assert Revision.current() > revision


def test_a_pattern_that_cannot_be_compiled_is_explained_at_its_field(admin_client: Client) -> None:
    """A4.2, B4: also one that could take for ever."""
    given = NEW | {"syntax": "regex", "pattern": "(?=x)"}
    response = admin_client.post(add_url(WorkflowFilter), given)
    assert "look-arounds" in " ".join(response.context["adminform"].form.errors["pattern"])
    assert not WorkflowFilter.objects.exists()


@pytest.mark.databases("catalogue.admin.filters")
def test_a_new_filter_comes_last(admin_client: Client) -> None:
    """A4.2: the first match decides, so an addition overrules nothing by accident."""
    make_filter("a", position=40)
    form = admin_client.get(add_url(WorkflowFilter)).context["adminform"].form
    assert form["position"].value() == 50


@pytest.mark.databases("catalogue.admin.filters")
def test_the_order_is_changed_in_the_list(admin_client: Client) -> None:
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
    admin_client.post(list_url(WorkflowFilter), given)
    assert list(load_exposed_catalogue().workflows) == ["pay_all"]


def test_a_filter_that_cannot_be_used_is_marked_and_can_be_switched_off_in_the_list(
    admin_client: Client,
) -> None:
    """B6: one that was loaded from a file, which checks nothing."""
    make_workflow(name="pay_all")
    rule = make_filter("(?=x)", action="exclude", syntax="regex", position=1)
    shown = text_of(admin_client.get(list_url(WorkflowFilter)))
    assert "exclude name (?=x) unusable: hides what reaches it" in shown
    assert "1 hidden pay_all" in shown
    assert "1 hidden because of it pay_all" in text_of(admin_client.get(page_url(rule)))
    given = {
        "form-TOTAL_FORMS": "1",
        "form-INITIAL_FORMS": "1",
        "form-0-id": rule.pk,
        "form-0-position": "1",
        "_save": "Save",
    }
    assert admin_client.post(list_url(WorkflowFilter), given).status_code == 302
    assert list(load_exposed_catalogue().workflows) == ["pay_all"]


def test_the_list_previews_what_the_chain_lets_through(admin_client: Client) -> None:
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


def test_a_filters_page_shows_what_it_alone_changes(admin_client: Client) -> None:
    """A4.2: others that hide the same workflow are not blamed on it."""
    make_workflow(name="pay_all")
    make_workflow(name="pay_secret")
    make_filter("*secret", action="exclude", position=1)
    rule = make_filter("pay*", action="exclude", position=2)
    shown = text_of(admin_client.get(page_url(rule)))
    assert "What this filter changes" in shown
    assert "1 hidden because of it pay_all" in shown
    assert "pay_secret" not in shown


def test_a_switched_off_filter_shows_what_it_would_change(admin_client: Client) -> None:
    """A4.2: a preview before agents notice anything."""
    make_workflow(name="other")
    make_workflow(name="pay_all")
    rule = make_filter("pay*", action="include", enabled=False)
    shown = text_of(admin_client.get(page_url(rule)))
    assert "would change if it were enabled" in shown
    assert "1 hidden because of it other" in shown
    assert set(load_exposed_catalogue().workflows) == {"other", "pay_all"}


def test_deleted_filters_stop_to_apply_and_agents_notice(admin_client: Client) -> None:
    """A4.4: in bulk as well."""
    rules = [make_filter("a*", action="exclude"), make_filter("b*", action="exclude")]
    revision = Revision.current()
    keys = [rule.pk for rule in rules]
    given = {"action": "delete_selected", "_selected_action": keys, "post": "yes"}
    admin_client.post(list_url(WorkflowFilter), given)
    assert not WorkflowFilter.objects.exists()
    assert Revision.current() > revision


def test_people_who_may_only_look_cannot_reorder(staff_with: StaffWith) -> None:
    """B8."""
    rule = make_filter("a*", position=7)
    client = staff_with("view_workflowfilter")
    assert str(rule) in text_of(client.get(list_url(WorkflowFilter)))
    assert 'name="form-0-position"' not in client.get(list_url(WorkflowFilter)).content.decode()
    run_action(client, "delete_selected", rule)
    assert WorkflowFilter.objects.get().position == 7


def test_the_form_says_what_a_pattern_is_matched_with(admin_client: Client) -> None:
    """A4.2."""
    shown = text_of(admin_client.get(add_url(WorkflowFilter)))
    assert "The name is the engine's" in shown
    assert "Upper and lower case count." in shown
