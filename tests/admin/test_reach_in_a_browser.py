"""The page that tells who can call what, with the mouse."""

from catalogue.models import Workflow
from tests.admin.pages import page_url
from tests.admin.window import Window
from tests.mcp_bridge.test_reach import make_small_world


def rows(window: Window, name: str) -> list[str]:
    found = f"[...document.querySelectorAll('[data-{name}]')].map(row => row.dataset.{name})"
    return [str(one) for one in window.run(f"return {found}")]


def test_the_report_leads_from_tools_to_callers_and_back(window):
    make_small_world()
    window.open("/admin/mcp_bridge/accesstoken/")
    window.click_through('#tabs-items a[href="/admin/mcp_bridge/accesstoken/reach/"]')
    assert rows(window, "tool") == ["pay", "report"]
    window.click("[role=search] input[type=search]")
    window.browser.press("repo")
    window.click_through("[role=search] button")
    assert rows(window, "tool") == ["report"]
    window.click_through("[data-tool=report] td:last-child a")
    assert window.run("return document.querySelector('#narrowed') !== null")
    window.click_through("#narrowed a")
    window.click_through("nav a[href='?by=caller']")
    assert len(rows(window, "caller")) == 3
    window.click_through("[data-tools='1'] td:last-child a")
    assert rows(window, "tool") == ["pay"]
    assert window.browser.complaints() == []


def test_pages_of_tokens_and_workflows_lead_to_it(window):
    make_small_world()
    window.open(page_url(Workflow.objects.get(tool_name="report")))
    window.click_through("a[href*='accesstoken/reach/?by=caller']")
    assert len(rows(window, "caller")) == 2
    window.click_through("[data-caller^=accesstoken] a")
    window.click_through("a[href*='accesstoken/reach/?by=tool']")
    assert rows(window, "tool") == ["pay", "report"]
