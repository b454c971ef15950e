"""The choice of a role and of who may use a toolset or a source, clicked in a real browser."""

import pytest
from django.contrib.auth.models import Group, User

from access import roles
from access.models import Role
from catalogue.models import Source, Toolset
from tests.admin.pages import add_url, page_url
from tests.admin.window import Window
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_source, make_toolset

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]
SAVE = 'button[name="_save"], input[name="_save"]'


def choose(window: Window, field: str, value: str) -> None:
    """As Select2 tells the select behind it."""
    window.run(
        f"const field = document.querySelector('[name={field}]');"
        f"const chosen = [...field.options].filter(option => option.value === '{value}');"
        "chosen.forEach(option => { option.selected = true; });"
        "field.dispatchEvent(new Event('change', {bubbles: true}))"
    )


def test_a_user_is_made_with_a_role_and_given_another(window):
    window.open(add_url(User))
    window.run("document.querySelector('[name=username]').value = 'ada'")
    for field in ("password1", "password2"):
        window.run(f"document.querySelector('[name={field}]').value = 'quite-another-one'")
    choose(window, "role", "viewer")
    window.click_through(SAVE)
    ada = User.objects.get(username="ada")
    assert ada.is_staff and roles.role_of(ada) == Role.objects.get(name="viewer")
    window.open(page_url(ada))
    assert window.run("return document.querySelector('[name=role]').value") == "viewer"
    shown = "return document.querySelector('[name=user_permissions]').checkVisibility()"
    assert not window.run(shown)
    choose(window, "role", "operator")
    window.click_through(SAVE)
    assert roles.role_of(ada) == Role.objects.get(name="operator")


def test_a_toolset_and_a_source_are_reserved_for_a_group(window):
    Group.objects.create(name="Finance")
    for row in (make_toolset("finance"), make_source("closed")):
        window.open(page_url(row))
        assert window.run("return document.querySelectorAll('.select2-container').length") >= 1
        choose(window, "reserved_for", "group:Finance")
        window.click_through(SAVE)
    assert Toolset.objects.get().reserved_for == Source.objects.get().reserved_for == ["group:Finance"]
