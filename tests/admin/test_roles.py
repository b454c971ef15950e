"""The roles that come with the product: their groups, the choice on a user's page, and the last owner."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection
from django.test import Client
from django.urls import reverse

from access import roles
from access.models import Role
from catalogue.models import HistoryEntry
from identity.admin.users import LAST_OWNER
from tests.admin.pages import add_url, form_at, form_values, list_url, page_url, text_of, told
from tests.factories import make_source, make_toolset

pytestmark = [pytest.mark.django_db, pytest.mark.databases("access.roles")]

Name = Role.Name


def group_of(name: Role.Name) -> Group:
    return Role.objects.get(name=name).group


def make_member(name: str, role: Role.Name | None = None, **fields: Any) -> User:
    user = User.objects.create(username=name, **{"is_staff": True} | fields)
    if role is not None:
        user.groups.add(group_of(role))
    return user


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def save(client: Client, account: User, **changes: Any) -> Any:
    """The page's form as it is, with these changes; None takes a field away."""
    values = form_at(client, page_url(account)) | changes
    return client.post(
        page_url(account), {name: one for name, one in values.items() if one not in ("", None)}
    )


def role_name(account: User) -> str:
    role = roles.role_of(account)
    return "" if role is None else role.name


def test_every_permission_is_given_to_the_owner_or_belongs_to_no_page():
    """A new model has to say who may do what with it."""
    given = roles.PERMISSIONS[Name.OWNER]
    internal = {(app, model) for app, models in roles.INTERNAL.items() for model in models}
    for permission in Permission.objects.select_related("content_type"):
        kind = permission.content_type
        name = f"{kind.app_label}.{permission.codename}"
        assert (name in given) != ((kind.app_label, kind.model) in internal) or _has_no_use(permission), name
    for name in Name.values:
        assert roles.PERMISSIONS[Name(name)] <= given


def _has_no_use(permission: Permission) -> bool:
    """Such as `add_discoveryrun`, of a model that is only looked at."""
    kind = permission.content_type
    return permission.codename.split("_")[0] in roles.WRITING and kind.model in roles.SEEN.get(
        kind.app_label, ()
    )


def test_a_migration_restores_roles_and_leaves_own_groups_alone():
    own = Group.objects.create(name="mine")
    own.permissions.add(Permission.objects.get(codename="view_source"))
    group_of(Name.VIEWER).permissions.add(Permission.objects.get(codename="delete_source"))
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
    granted = {
        f"{one.content_type.app_label}.{one.codename}"
        for one in group_of(Name.VIEWER).permissions.select_related("content_type")
    }
    assert granted == roles.PERMISSIONS[Name.VIEWER] and "catalogue.view_source" in granted
    assert {one.split(".")[1].split("_")[0] for one in granted} == {"view"}
    assert list(own.permissions.values_list("codename", flat=True)) == ["view_source"]


def test_an_own_group_of_the_same_name_stays_what_it_is():
    Role.objects.all().delete()
    Group.objects.all().delete()
    own = Group.objects.create(name="Viewer")
    roles.keep_roles()
    roles.keep_roles()
    assert not own.permissions.exists()
    assert group_of(Name.VIEWER).name == "Viewer (role)"
    assert Group.objects.count() == 5


def test_one_choice_gives_a_role_and_takes_the_former_one(admin_client):
    own = Group.objects.create(name="mine")
    member = make_member("ada", Name.VIEWER)
    member.groups.add(own)
    assert "Viewer" in text_of(admin_client.get(list_url(User)))
    save(admin_client, member, role="operator")
    member = User.objects.get(pk=member.pk)
    assert set(member.groups.values_list("name", flat=True)) == {"mine", group_of(Name.OPERATOR).name}
    assert member.has_perm("executions.add_execution") and not member.has_perm("catalogue.change_source")
    save(admin_client, member, role=None)
    assert list(member.groups.values_list("name", flat=True)) == ["mine"]
    assert HistoryEntry.of(member).count() == 2


def test_a_new_user_gets_a_role_at_once(admin_client):
    password = {"password1": "quite-another-one", "password2": "quite-another-one", "usable_password": "true"}
    admin_client.post(add_url(User), {"username": "new", "role": "curator", "is_staff": "on"} | password)
    made = User.objects.get(username="new")
    assert role_name(made) == "curator" and made.is_staff and made.has_perm("catalogue.change_workflow")


@pytest.mark.parametrize("role", ["owner", "operator"])
def test_no_role_above_the_own_can_be_given_also_by_a_forged_post(role):
    clerk = make_member("clerk", Name.CURATOR)
    clerk.user_permissions.set(Permission.objects.filter(codename__in=("add_user", "change_user")))
    make_member("chief", is_superuser=True)
    colleague, client = make_member("colleague"), signed_in(clerk)
    for account in (colleague, clerk):
        before = set(User.objects.get(pk=account.pk).get_all_permissions())
        save(client, account, role=role)
        save(client, account, role="curator", groups=[group_of(Name(role)).pk])
        save(client, account, role="curator", is_superuser="on")
        now = User.objects.get(pk=account.pk)
        assert not now.is_superuser and role_name(now) != role
        assert set(now.get_all_permissions()) <= before | roles.PERMISSIONS[Name.CURATOR]
    password = {"password1": "quite-another-one", "password2": "quite-another-one", "usable_password": "true"}
    client.post(add_url(User), {"username": "new", "role": role, "is_superuser": "on"} | password)
    assert not User.objects.filter(username="new").exists()


def test_an_owner_neither_makes_superusers_nor_changes_them():
    client, root = signed_in(make_member("owner", Name.OWNER)), make_member("root", is_superuser=True)
    colleague = make_member("colleague")
    save(client, colleague, is_superuser="on", role="owner")
    colleague.refresh_from_db()
    assert not colleague.is_superuser and role_name(colleague) == "owner"
    assert client.post(page_url(root), {"username": "root", "is_active": ""}).status_code == 403
    assert client.post(reverse("admin:auth_user_delete", args=[root.pk]), {"post": "yes"}).status_code == 403


def test_the_group_of_a_role_is_only_looked_at(admin_client):
    group = group_of(Name.VIEWER)
    had = set(group.permissions.values_list("pk", flat=True))
    assert admin_client.get(page_url(group)).status_code == 200
    assert admin_client.post(page_url(group), {"name": "mine", "permissions": []}).status_code == 403
    assert (
        admin_client.post(reverse("admin:auth_group_delete", args=[group.pk]), {"post": "yes"}).status_code
        == 403
    )
    admin_client.post(
        list_url(Group), {"action": "delete_selected", "_selected_action": group.pk, "post": "yes"}
    )
    assert set(group_of(Name.VIEWER).permissions.values_list("pk", flat=True)) == had


LOSSES: dict[str, dict[str, Any]] = {
    "another role": {"role": "operator"},
    "no role": {"role": None},
    "disabled": {"is_active": None},
    "no staff": {"is_staff": None},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_last_owner_stays_one(loss):
    owner = make_member("owner", Name.OWNER)
    make_member("off", is_superuser=True, is_active=False)
    client = signed_in(owner)
    page = save(client, owner, **LOSSES[loss])
    assert page.status_code == 200 and LAST_OWNER in text_of(page)
    assert roles.owners().get() == owner
    make_member("second", Name.OWNER)
    again = save(client, owner, **LOSSES[loss])
    assert again.status_code == 302, again.context["adminform"].form.errors
    assert roles.owners().get().username == "second"


def test_the_last_owners_cannot_be_deleted_alone_or_together():
    one, other = make_member("one", Name.OWNER), make_member("other", Name.OWNER)
    client = signed_in(one)
    chosen = {"action": "delete_selected", "_selected_action": [one.pk, other.pk], "post": "yes"}
    assert "last active owner" in text_of(client.post(list_url(User), chosen))
    assert roles.owners().count() == 2
    client.post(reverse("admin:auth_user_delete", args=[other.pk]), {"post": "yes"})
    assert roles.owners().get() == one
    assert client.post(reverse("admin:auth_user_delete", args=[one.pk]), {"post": "yes"}).status_code == 403


@pytest.mark.django_db(transaction=True)
def test_of_two_owners_who_remove_each_other_at_once_one_stays():
    for loss in ("disabled", "another role"):
        names = [f"{name}-{loss.split()[0]}" for name in ("one", "other")]
        one, other = (make_member(name, Name.OWNER) for name in names)
        both_ready = Barrier(2)

        def remove(
            pair: tuple[User, User], changes: dict[str, Any] = LOSSES[loss], ready: Barrier = both_ready
        ) -> int:
            client, page = signed_in(pair[0]), page_url(pair[1])
            try:
                values = form_values(client.get(page)) | changes
                ready.wait(timeout=60)
                answer = client.post(
                    page, {name: value for name, value in values.items() if value not in ("", None)}
                )
                return int(answer.status_code)
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as threads:
            codes = list(threads.map(remove, ((one, other), (other, one))))
        assert codes.count(302) == 1, codes
        assert set(codes) <= {302, 200, 403}, codes
        assert roles.owners().count() == 1
        roles.owners().update(is_active=False)


def test_a_reservation_follows_a_new_name_and_keeps_one_that_is_gone(admin_client):
    """Else saving the page of a toolset whose group was deleted would open it."""
    group, ada = Group.objects.create(name="Finance"), make_member("ada")
    toolset = make_toolset("finance", reserved_for=["group:Finance", "user:ada"])
    source = make_source("closed", reserved_for=["group:Finance"])
    admin_client.post(page_url(group), {"name": "Accounting"})
    save(admin_client, ada, username="ada.l")
    toolset.refresh_from_db()
    source.refresh_from_db()
    assert toolset.reserved_for == ["group:Accounting", "user:ada.l"]
    assert source.reserved_for == ["group:Accounting"]
    Group.objects.filter(pk=group.pk).delete()
    page = admin_client.get(page_url(toolset))
    assert "group:Accounting (deleted)" in text_of(page)
    rules = {"rules-TOTAL_FORMS": 0, "rules-INITIAL_FORMS": 0}
    values = {"slug": "finance", "mode": "full", "enabled": "on", "title": "Money"}
    admin_client.post(
        page_url(toolset), values | rules | {"reserved_for": ["group:Accounting", "user:ada.l"]}
    )
    toolset.refresh_from_db()
    assert (toolset.title, toolset.reserved_for) == ("Money", ["group:Accounting", "user:ada.l"])
    refused = admin_client.post(add_url(Group), {"name": "Finance\nand more"})
    assert "A name must be one line of text" in text_of(refused)
    refused = admin_client.post(page_url(toolset), values | rules | {"reserved_for": ["group:Nobody"]})
    assert "These do not exist: group:Nobody" in text_of(refused)


def test_an_operator_refreshes_a_source_and_changes_nothing_of_it():
    client, source = signed_in(make_member("op", Name.OPERATOR)), make_source("closed")
    page = text_of(client.get(page_url(source)))
    assert "Refresh now" in page
    client.post(page_url(source), {"name": "mine"})
    source.refresh_from_db()
    assert source.name == "closed"
    pressed = client.post(reverse("admin:catalogue_source_refresh_now", args=[source.pk]))
    assert "Could not connect" in told(pressed)


def test_only_models_with_a_table_of_their_own_are_named_in_the_table():
    """But for those of apps that come with the next migrations."""
    known = {(model._meta.app_label, model._meta.model_name) for model in apps.get_models()}
    named = {
        (app, model)
        for table in (roles.SEEN, roles.CURATED, roles.OWNED)
        for app in table
        for model in table[app]
    }
    assert named - known <= {("audit", "entry"), ("executions", "approval")}
