"""Accounts and groups in the admin: nobody hands out more than they have."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from tests.admin.conftest import StaffWith
from tests.admin.pages import add_url, form_at, list_url, page_url, run_action, text_of, told

pytestmark = pytest.mark.django_db

PERMITTED = ("add_user", "change_user", "view_user", "delete_user", "change_group", "view_group", "add_group")


def permission(codename: str) -> Permission:
    return Permission.objects.get(codename=codename)


@pytest.fixture
def clerk(staff_with: StaffWith) -> Client:
    """May manage accounts and look at workflows, and nothing else."""
    return staff_with(*PERMITTED, "view_workflow")


def save(client: Client, account: User, **changes: Any) -> None:
    values = form_at(client, page_url(account))
    values |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    client.post(page_url(account), {name: value for name, value in values.items() if value != ""} | changes)


def test_only_what_one_has_oneself_can_be_given_to_an_account(clerk):
    """Also not to one's own."""
    workers = Group.objects.create(name="workers")
    workers.permissions.add(permission("view_workflow"))
    curators = Group.objects.create(name="curators")
    curators.permissions.add(permission("change_workflow"), permission("view_workflow"))
    colleague = User.objects.create(username="colleague", is_staff=True)
    for account in (colleague, User.objects.get(username="member")):
        had = set(account.get_all_permissions())
        save(clerk, account, is_superuser="on")
        save(clerk, account, user_permissions=[permission("change_workflow").pk])
        save(clerk, account, groups=[curators.pk])
        account = User.objects.get(pk=account.pk)
        assert not account.is_superuser
        assert account.get_all_permissions() == had
    save(clerk, colleague, user_permissions=[permission("view_workflow").pk], groups=[workers.pk])
    colleague = User.objects.get(pk=colleague.pk)
    assert colleague.get_all_permissions() == {"catalogue.view_workflow"}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: User.objects.create(username="colleague"), "user_permissions"),
        (lambda: Group.objects.create(name="workers"), "permissions"),
    ],
)
def test_only_permissions_that_allow_something_are_offered_each_in_words_of_its_own(
    admin_client, make, field
):
    """B8: not those of sessions, nor another "Can view access token", of a table without a page."""
    account = make()
    form = admin_client.get(page_url(account)).context["adminform"].form
    offered = [form.fields[field].label_from_instance(each) for each in form.fields[field].queryset]
    assert {"Can add access token", "Can refresh source", "Can approve and refuse calls"} <= {*offered}
    assert not {"Can view session", "Can add content type", "Can view grant"} & {*offered}
    assert len({*offered}) == len(offered)


def test_a_new_colleague_with_a_role_can_log_in(admin_client):
    """A role alone opened no page, and the login said that the password was wrong."""
    form = form_at(admin_client, add_url(User)) | {"username": "vera", "role": "viewer"}
    form |= {"password1": "correct-horse-77", "password2": "correct-horse-77"}
    made = admin_client.post(add_url(User), form)
    assert "cannot log in" not in told(made) and User.objects.get(username="vera").is_staff

    del form["is_staff"]
    without = admin_client.post(add_url(User), form | {"username": "agent"})
    assert "agent has a role but cannot log in here: “Staff status” is off." in told(without)


def test_a_group_gets_no_permission_that_its_editor_lacks(clerk):
    """B8"""
    clerk.post(add_url(Group), {"name": "mine", "permissions": [permission("delete_source").pk]})
    assert not Group.objects.filter(name="mine").exists()
    clerk.post(add_url(Group), {"name": "mine", "permissions": [permission("view_workflow").pk]})
    assert Group.objects.get(name="mine").permissions.count() == 1


@pytest.mark.parametrize("active", [True, False])
def test_a_more_powerful_account_or_group_is_out_of_reach(clerk, active):
    """Who sets its password is that account, and who empties a group takes from others."""
    chief = User.objects.create(username="chief", is_staff=True, is_superuser=True, is_active=active)
    curator = User.objects.create(username="curator", is_staff=True, is_active=active)
    curators = Group.objects.create(name="curators")
    curators.permissions.add(permission("change_workflow"))
    curator.groups.add(curators)
    for account in (chief, curator):
        password = {"password1": "quite-another-one", "password2": "quite-another-one"}
        address = reverse("admin:auth_user_password_change", args=[account.pk])
        assert clerk.post(address, password | {"usable_password": "true"}).status_code == 403
        assert clerk.post(page_url(account), {"username": "mine"}).status_code == 403
        assert clerk.post(page_url(account).replace("change", "delete"), {"post": "yes"}).status_code == 403
    assert clerk.post(page_url(curators), {"name": "none"}).status_code == 403
    selected = {"action": "delete_selected", "_selected_action": [chief.pk, curator.pk], "post": "yes"}
    clerk.post(list_url(User), selected)
    assert User.objects.filter(pk__in=[chief.pk, curator.pk]).count() == 2


def test_a_superuser_hands_out_everything(admin_client):
    """B8"""
    colleague = User.objects.create(username="colleague", is_staff=True)
    save(admin_client, colleague, is_superuser="on", user_permissions=[permission("delete_source").pk])
    colleague.refresh_from_db()
    assert colleague.is_superuser and colleague.user_permissions.count() == 1


def test_the_question_before_an_account_is_deleted_names_its_groups_and_permissions(admin_client):
    team = Group.objects.create(name="finance team")
    team.permissions.add(permission("view_source"))
    leaver = User.objects.create(username="leaver")
    leaver.groups.add(team)
    leaver.user_permissions.add(permission("view_workflow"))
    membership = "Membership of leaver in finance team"
    account, group = (
        text_of(admin_client.get(page_url(one).replace("change", "delete"))) for one in (leaver, team)
    )
    assert membership in account and "Permission of leaver: Can view workflow" in account
    assert membership in group and "Permission of finance team: Can view source" in group
    assert " object (" not in account + group


def test_the_question_before_a_deletion_is_not_turned_round_by_a_name(admin_client):
    """U+202E in a name would reverse the words of the question behind it."""
    team = Group.objects.create(name="finance \u202eteam")
    team.permissions.add(permission("view_source"))
    team.user_set.add(User.objects.create(username="member"))
    question = admin_client.get(page_url(team).replace("change", "delete"))
    selected = run_action(admin_client, "delete_selected", team)
    assert r'delete the group "finance \u202eteam"?' in text_of(question)
    for page in (question, selected):
        assert "\u202e" not in page.content.decode()
        for line in ("Group:", "Membership of member in", "Permission of"):
            assert rf"{line} finance \u202eteam" in text_of(page)
    done = admin_client.post(page_url(team).replace("change", "delete"), {"post": "yes"})
    assert told(done) == r"The group “finance \u202eteam” was deleted successfully."
