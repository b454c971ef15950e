"""The search over all: what comes first, and what it says."""

import re

import pytest
from django.contrib.auth.models import User

from tests.admin.window import make_everything
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_source, make_toolset, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("catalogue.admin.site")]


def found(client, term):
    page = client.get("/admin/search/", {"s": term, "extended": "1"}).content.decode()
    return list(
        zip(*(re.findall(f'data-{part}="([^"]*)"', page) for part in ("title", "description")), strict=True)
    )


def test_what_is_called_so_comes_first_then_what_begins_with_it(admin_client):
    source = make_source("a-source")
    for name in ("a_pay", "pay_out", "pay", "repay"):
        make_workflow(source, tool_name=name, name=name)
    make_toolset("pay")
    names = [title for title, _ in found(admin_client, "pay")]
    assert names == ["pay", "pay", "pay_out", "a_pay", "repay"]


def test_it_says_whether_agents_may_see_it(admin_client):
    source = make_source("shop")
    make_workflow(source, tool_name="pay_in", name="pay_in", title_override="Take money", enabled=False)
    make_workflow(source, tool_name="pay_out", name="pay_out")
    told = dict(found(admin_client, "pay"))
    assert "hidden" in told["pay_in"] and "Take money" in told["pay_in"] and "shop" in told["pay_in"]
    assert "enabled" in told["pay_out"]


@pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)
def test_its_key_works_while_a_checkbox_has_the_focus(window):
    make_everything(User.objects.get())
    window.open("/admin/catalogue/workflow/")
    window.run("document.querySelector('input.action-select').focus()")
    key = "{key: 'k', ctrlKey: true, bubbles: true}"
    window.run(f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key}))")
    window.browser.wait_for("document.activeElement?.closest('[x-show=openCommandResults]')")
