"""The desk without a mouse: at 200 and 400 % zoom, and as screen readers hear it."""

import pytest
from django.contrib.auth.models import User

from catalogue.models import Source, Workflow
from executions.models import Execution
from identity.models import AccessToken
from tests.admin.pages import list_url, page_url
from tests.admin.window import Window, make_everything
from tests.e2e.webdriver import BROWSER, CONTROL, DRIVER, ENTER, ESCAPE, MISSING, SHIFT, SPACE, TAB
from tests.factories import make_execution, make_workflow

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

CUT = """
const edge = innerWidth - 25, rightOf = one => one.getBoundingClientRect().right;
const isCut = one => one.scrollWidth > one.clientWidth + 1 || rightOf(one) > edge;
return [...document.querySelectorAll('#panel-facts dd, h1 > *')]
  .filter(one => one.checkVisibility() && isCut(one)).map(one => one.innerText);
"""
FOCUSED = "document.activeElement"
IS_SEEN = """
((one, box) => one === document.elementFromPoint(box.left + 8, box.top + 8))
(document.activeElement, document.activeElement.getBoundingClientRect())
"""
"""Instead of what lies over it, such as the bar of actions."""


def heard(window: Window, *roles: str) -> list[str]:
    """The names that the accessibility tree gives the parts of these roles."""
    nodes = window.browser.devtools("Accessibility.getFullAXTree")["nodes"]
    return [one["name"]["value"] for one in nodes if not one["ignored"] and one["role"]["value"] in roles]


def wait_until_told(window: Window, words: str) -> None:
    window.browser.wait_for_text(words, within="#told[role=status]")


def test_at_400_percent_the_menu_and_the_way_out_are_reached_and_nothing_is_cut_off(window):
    """B8: the menu's button, the account and the search were for the mouse alone."""
    browser = window.browser
    browser.resize(320, 800)
    long = make_workflow(name="reconcile_the_monthly_billing_statements", open_world_hint=False)
    window.open(page_url(long))
    browser.press(TAB)
    assert window.run(f"return {FOCUSED}.innerText") == "Skip to the content"
    browser.press(ENTER)
    assert window.run(f"return {FOCUSED}.matches('[role=main]')")
    assert window.run(CUT) == []
    assert heard(window, "heading")[0] == long.tool_name
    window.open("/admin/")
    browser.tab_to("[aria-label=Menu][aria-expanded=false]")
    browser.press(ENTER)
    browser.wait_for(f"{FOCUSED}.closest('#nav-sidebar')")
    browser.press_together(SHIFT, TAB)
    assert window.run(f"return {FOCUSED}.innerText").startswith("A\nadmin"), "round within the menu"
    browser.press(ENTER)
    browser.wait_for(f"{FOCUSED}.innerText.includes('Light')")
    browser.tab_to("#logout-form button", most=10)
    browser.press(ESCAPE)
    browser.wait_for(f"{FOCUSED}.innerText.startsWith('A') && {FOCUSED}.ariaExpanded === 'false'")
    browser.press(ESCAPE)
    browser.wait_for(f"{FOCUSED}.matches('[aria-label=Menu][aria-expanded=false]')")
    assert not window.run("return document.querySelector('#nav-sidebar').checkVisibility()")
    browser.press(ENTER)
    browser.tab_to("#nav-sidebar a[href='/admin/catalogue/source/']")
    window.follow_key(ENTER)
    assert window.run("return location.pathname") == list_url(Source)


def test_filters_and_the_search_take_the_keyboard_in_and_give_it_back(window):
    """B8: Tab went through the list behind the filters, and each of these was heard as "All"."""
    make_everything(User.objects.get())
    browser = window.browser
    window.open(list_url(Source))
    browser.tab_to("#changelist-filter-open")
    browser.press(ENTER)
    browser.wait_for(f"{FOCUSED}.closest('[role=dialog][aria-label=Filters]')")
    assert {"By health state All", "By enabled", "Filters"} <= set(
        heard(window, "combobox", "group", "dialog")
    )
    browser.press_together(SHIFT, TAB)
    browser.press_together(SHIFT, TAB)
    assert window.run(f"return {FOCUSED}.innerText") == "Show counts"
    browser.press(TAB, TAB, ENTER)
    browser.wait_for(f"{FOCUSED}.matches('.select2-search__field')")
    browser.press(ESCAPE)
    browser.wait_for(f"{FOCUSED}.closest('#changelist-filter')")
    browser.press(ESCAPE)
    browser.wait_for(f"{FOCUSED}.id === 'changelist-filter-open'")
    browser.press_together(CONTROL, "k")
    browser.wait_for(f"{FOCUSED}.id === 'search-input-command'")
    browser.press("plain")
    wait_until_told(window, "found 1 result")
    browser.press(TAB, TAB, ESCAPE)
    browser.wait_for(f"{FOCUSED}.id === 'changelist-filter-open'")
    window.open(list_url(Workflow))
    names = heard(window, "link", "button", "checkbox")
    assert {"Select plain", "Search", "Add tool", "Overview"} <= set(names)
    assert not [name for name in names if not name or "account_tree" in name]


def test_what_a_key_has_changed_is_told_and_keeps_the_focus(window):
    """B8, A4.4: switches lost the focus while they were off for their request, and nothing was announced."""
    workflow = make_workflow(enabled=False)
    browser = window.browser
    window.open(list_url(Workflow))
    browser.tab_to(f"#switch-{workflow.pk}")
    browser.press(SPACE)
    wait_until_told(window, "exposed")
    browser.press(SPACE)
    wait_until_told(window, "disabled")
    browser.press_together(SHIFT, TAB)
    assert window.run(f"return {FOCUSED}.ariaLabel") == f"Select {workflow.tool_name}"
    browser.resize(320, 260)
    browser.press(SPACE)
    wait_until_told(window, "selected workflows: 1, on this page: 1")
    browser.wait_for(IS_SEEN)
    browser.resize(1280)
    window.open(f"{page_url(workflow)}#text")
    browser.tab_to("#id_tool_name", most=90)
    window.follow_key(ENTER)
    wait_until_told(window, "was changed successfully")


def test_a_run_that_is_watched_neither_takes_the_focus_nor_ends_in_silence(window):
    """B8: each look at it threw out whoever had come to one of its links."""
    execution = make_execution(make_workflow(), state="running")
    browser = window.browser
    window.open(page_url(execution))
    browser.tab_to("#panel-facts a")
    words = window.run(f"window.before = {FOCUSED}; return {FOCUSED}.innerText")
    Execution.objects.update(state="completed")
    wait_until_told(window, "completed")
    assert window.run(f"return {FOCUSED} !== before && {FOCUSED}.innerText") == words


def test_a_token_is_made_and_copied_with_the_keyboard(window):
    """B8: and what is said to be copied is."""
    browser = window.browser
    browser.devtools(
        "Browser.setPermission", permission={"name": "clipboard-write"}, setting="granted", origin=window.site
    )
    window.open("/admin/mcp_bridge/accesstoken/add/")
    browser.tab_to("[aria-label='Related objects']")
    browser.press(ENTER)
    browser.wait_for(f"{FOCUSED}.matches('.related-widget-wrapper-link')")
    browser.press(ESCAPE)
    browser.wait_for(f"{FOCUSED}.matches('[aria-label=\"Related objects\"]')")
    window.run("document.querySelector('#id_name').focus()")
    browser.press("agent")
    window.follow_key(ENTER)
    wait_until_told(window, "was added successfully")
    assert AccessToken.objects.get().name == "agent"
    window.run("document.querySelector('#content pre + button').focus()")
    browser.press(ENTER)
    wait_until_told(window, "Copied")
    AccessToken.objects.update(
        scopes=["workflows:read", "workflows:run", "catalogue:read", "catalogue:admin"]
    )
    browser.resize(320)
    window.open(list_url(AccessToken))
    last = "document.querySelector('.field-scopes_shown > div:last-child').getBoundingClientRect()"
    assert window.run(f"return {last}.right < innerWidth - 16"), "all of its scopes are shown"
