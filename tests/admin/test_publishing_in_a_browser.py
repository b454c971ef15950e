"""Publishing to a team with the mouse: from the list to a test call at the product's own address."""

import pytest

from catalogue.models import Toolset, Workflow
from identity.models import AccessToken
from tests.admin.pages import page_url
from tests.admin.test_pages_in_a_browser import (
    CLASSES,
    NARROW,
    OF_COLOURS,
    WIDE,
    axe,  # noqa: F401 - a fixture
    axe_problems,
    overflowing,
)
from tests.admin.window import Window
from tests.factories import make_source, make_toolset, make_workflow


@pytest.fixture
def selection(window: Window) -> list[Workflow]:
    source = make_source()
    texts = {"pay": "Pay an invoice.", "refund": "Refund a payment."}
    rows = [make_workflow(source, name=name, enabled=False, description=texts[name]) for name in texts]
    rows.append(make_workflow(source, name="alike", enabled=False, resembles="list_workflows"))
    make_workflow(source, name="report")
    make_toolset("sales", title="Sales")
    return rows


def open_the_page(window: Window) -> None:
    window.open("/admin/catalogue/workflow/?enabled__exact=0")
    window.click("#action-toggle")
    window.click('[name="action"] option[value="publish_selected"]')
    window.click_through("#changelist-actions button[type=submit]")


def preview(window: Window, name: str) -> str:
    return str(
        window.run(f"return document.querySelector('#publish-preview [data-{name}]')?.dataset['{name}']")
    )


def publish(window: Window) -> None:
    window.click("#id_title")
    window.browser.press("Finance team")
    # The preview then moves what is below it: a click on the way there would meet nothing.
    window.browser.wait_for(
        "document.querySelector('#publish-preview').textContent.includes('/mcp/finance-team')"
    )
    window.click("#id_token_name")
    window.browser.press("finance agent")
    window.click_through("#publish-button")


def test_a_selection_is_published_tested_and_nothing_is_asked_twice(window, selection, settings):
    settings.PUBLIC_URL = window.site
    open_the_page(window)
    assert preview(window, "newly") == "2" and preview(window, "undecided") == "1"
    window.click("#flagged input")
    window.browser.wait_for("document.querySelector('#publish-preview [data-newly]').dataset.newly === '3'")
    publish(window)
    assert window.run("return document.querySelector('#published').dataset.count") == "3"
    toolset = Toolset.objects.get(slug="finance-team")
    assert AccessToken.objects.get().toolset == toolset
    window.click("#test-button")
    window.browser.wait_for("document.querySelector('[data-trial=listed]')")
    assert "pay" in window.run("return document.querySelector('[data-trial=listed]').textContent")
    assert window.run("return document.querySelector('[data-called]').dataset.called") == "list_workflows"
    window.click("#tab-cursor")
    window.browser.wait_for("document.querySelector('[data-install=cursor]').offsetParent !== null")


def test_both_pages_can_be_used_without_sight_and_on_a_phone(window, selection, axe):  # noqa: F811
    open_the_page(window)
    for _ in ("form", "result"):
        assert axe_problems(window, axe) == []
        window.run(f"{CLASSES}.add('dark')")
        assert axe_problems(window, axe, OF_COLOURS) == []
        window.browser.resize(NARROW)
        assert not overflowing(window)
        window.browser.resize(WIDE)
        if window.run("return !document.querySelector('#published')"):
            publish(window)


def test_the_fields_of_what_is_not_chosen_are_out_of_the_way(window, selection):
    open_the_page(window)
    is_shown = "return document.querySelector('#id_{}').offsetParent !== null"
    assert window.run(is_shown.format("title")) and window.run(is_shown.format("token_name"))
    key = Toolset.objects.get().pk
    window.click(f"#id_toolset option[value='{key}']")
    window.browser.wait_for("document.querySelector('#id_title').offsetParent === null")
    window.browser.wait_for("document.querySelector('#publish-preview').textContent.includes('/mcp/sales')")
    window.click("input[name=connect][value=later]")
    window.browser.wait_for("document.querySelector('#id_token_name').offsetParent === null")
    window.click("input[name=only_there]")
    window.browser.wait_for("document.querySelector('#publish-preview [data-newly]')")


def test_the_picks_of_a_toolset_are_enabled_from_its_page(window, selection):
    toolset = Toolset.objects.get()
    toolset.picked.set(selection[:2])
    window.open(page_url(toolset))
    window.click_through("#enable-picked")
    assert preview(window, "newly") == "2"
    window.click_through("#publish-button")
    assert window.run("return document.querySelector('#published').dataset.enabled") == "2"
