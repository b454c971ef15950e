"""The menu, its tabs and the way back from a change, clicked."""

import pytest
from django.contrib.auth.models import User

from catalogue.models import Workflow
from tests.admin.window import make_everything
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)]


def test_tabs_lead_from_page_to_page_within_a_place(window):
    window.open("/admin/")
    window.click_through("#nav-sidebar a[href='/admin/catalogue/workflow/']")
    window.click_through("#tabs-items a[href='/admin/catalogue/workflowfilter/']")
    marked = (
        "return [...document.querySelectorAll('#nav-sidebar a.active, #tabs-items a.active')].map(one => "
    )
    assert window.run(f"{marked} one.getAttribute('href'))") == [
        "/admin/catalogue/workflow/",
        "/admin/catalogue/workflowfilter/",
    ]


def test_a_bulk_action_is_undone_by_its_message_after_a_question(window):
    make_everything(User.objects.get())
    before = set(Workflow.objects.filter(enabled=True))
    window.open("/admin/catalogue/workflow/?is=enabled")
    window.click("#action-toggle")
    window.click('[name="action"] option[value="disable_selected"]')
    window.click_through("#changelist-actions button[type=submit]")
    assert not Workflow.objects.filter(enabled=True).exists()
    window.click_through("form[data-undo] button")
    assert window.run("return document.querySelector('[data-count]').dataset.count") == "3"
    window.click_through("#revert-and-expose button[type=submit]")
    assert set(Workflow.objects.filter(enabled=True)) == before
    assert window.run("return location.pathname + location.search") == "/admin/catalogue/workflow/?is=enabled"
