"""The lists of the admin in a real browser: what can be clicked there does what it says."""

import json
import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import models
from django.http import HttpRequest
from django.test import Client

import config.urls  # noqa: F401 - it registers the pages
from audit.models import Entry
from catalogue.models import ProductSettings, Review, Toolset, Workflow
from executions.admin.failures import CauseFilter
from executions.inbox import FILTER
from executions.models import CachePolicy, Execution, Retention
from tests.admin.pages import list_url, page_url
from tests.admin.window import Window, in_parts, make_everything
from tests.e2e.webdriver import BACKSPACE, BROWSER, CONTROL, DOWN, DRIVER, ENTER, MISSING
from tests.executions.engines import wait_until
from tests.factories import make_execution, make_source, make_toolset, make_workflow, make_workflows

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

FILTERED = [
    model
    for model, pages in admin.site._registry.items()
    if model is not Workflow and pages.get_list_filter(HttpRequest())
]
"""The list of workflows has facets instead: test_workflow_list_in_a_browser.py."""

HEADINGS = """[...document.querySelectorAll('#result_list thead th')].flatMap(heading =>
  [...heading.querySelectorAll("a[href*='o=']")]
    .filter(link => link.checkVisibility() && link.innerText.trim()).slice(0, 1))
"""
"""The links that sort, one of each column."""

FIELDS = "#filter-form [name]:not([type=hidden])"


def names(model: type[models.Model]) -> str:
    return model.__name__


def rows(window: Window) -> int:
    return int(window.run("return document.querySelectorAll('#result_list tbody tr').length"))


def filter_fields(window: Window) -> dict[str, list[str]]:
    """The values on offer by the name of the filter; the empty one is "All"."""
    return dict(
        window.run(
            f"""
            const offered = {{}};
            for (const field of document.querySelectorAll({FIELDS!r})) {{
              const values = [...(field.options ?? [field])].map(one => one.value);
              (offered[field.name] ??= []).push(...values);
            }}
            return offered;
            """
        )
    )


def choose(window: Window, **values: str) -> None:
    """In the panel of filters, as a mouse does it."""
    window.click("#changelist-filter-open")
    window.browser.wait_for("document.querySelector('#filter-form').checkVisibility()")
    for name, value in values.items():
        field = f'#filter-form [name="{name}"]'
        option = f'{field} option[value="{value}"]'
        is_option = window.run(f"return !!document.querySelector('{option}')")
        window.click(option if is_option else f'{field}[value="{value}"]')
    window.click_through("#filter-form [type=submit]")


@pytest.mark.parametrize("lists", in_parts(FILTERED, 3))
def test_every_filter_of_every_list_narrows_it_and_opens_it_again(window, client, lists, subtests):
    """A4.2, B8: a value of each is chosen and the one before opened, and the address and the rows follow."""
    admin_user = User.objects.get()
    make_everything(admin_user)
    client.force_login(admin_user)
    for model in lists:
        with subtests.test(names(model)):
            try_filters(window, client, model)


def try_filters(window: Window, client: Client, model: type[models.Model]) -> None:
    window.open(list_url(model))
    whole, offered = rows(window), filter_fields(window)
    known = admin.site._registry[model].get_list_filter(HttpRequest())
    assert len(offered) == len([one for one in known if one is not CauseFilter]), offered
    offered.pop(FILTER, None)  # The overview leads there
    applied: dict[str, str] = {}
    for name, values in offered.items():
        found = ((value, rows_by_address(client, model, name, value)) for value in values if value)
        value, count = next((value, count) for value, count in found if 0 < count < whole)
        choose(window, **dict.fromkeys(applied, ""), **{name: value})
        applied = {name: value}
        assert window.run("return Object.fromEntries(new URL(location).searchParams)") == applied
        assert rows(window) == count
    choose(window, **dict.fromkeys(applied, ""))
    assert (window.run("return location.search"), rows(window)) == ("", whole)


def rows_by_address(client: Client, model: type[models.Model], name: str, value: str) -> int:
    return int(client.get(list_url(model), {name: value}).context["cl"].result_count)


@pytest.mark.parametrize("model", [Workflow, Execution], ids=names)
def test_show_all_shows_the_rows_of_all_pages(window, model):
    """A4.2: the search stays."""
    for workflow in make_workflows(120, make_source("big")):
        make_execution(workflow)
    window.open(f"{list_url(model)}?q=workflow")
    assert rows(window) < 120
    window.click_through("a.showall")
    assert rows(window) == 120 and "q=workflow" in window.run("return location.search")


LISTS = [model for model in admin.site._registry if model not in (Retention, CachePolicy, Review)]
"""Those two have a single row, which their list leads to, and reviews have the queue."""


@pytest.mark.parametrize("lists", in_parts(LISTS, 3))
def test_every_heading_of_every_list_sorts_it(window, lists, subtests):
    """B8."""
    make_everything(User.objects.get())
    for model in lists:
        with subtests.test(names(model)):
            try_headings(window, model)


def try_headings(window: Window, model: type[models.Model]) -> None:
    window.open(list_url(model))
    whole, headings = rows(window), int(window.run(f"return {HEADINGS}.length"))
    sortable = "[...document.querySelectorAll('#result_list th.sortable')]"
    assert headings == window.run(f"return {sortable}.filter(one => one.checkVisibility()).length")
    for number in range(headings):
        address = window.run(f"const link = {HEADINGS}[{number}]; link.id = 'the-heading'; return link.href")
        window.click_through("#the-heading")
        assert window.run("return location.href") == address
        assert rows(window) == whole


SLOW_FRAMES = """
const atOnce = requestAnimationFrame;
window.requestAnimationFrame = call => setTimeout(() => atOnce(call), 100);
"""
"""As on a busy machine."""


def test_ctrl_k_finds_workflows_and_says_when_there_are_none(window):
    """B8: with the keyboard alone."""
    workflow = make_workflow(name="collect_orders")
    window.open("/admin/")
    window.run(SLOW_FRAMES)
    window.browser.press_together(CONTROL, "k")
    window.browser.wait_for("document.activeElement.matches('#search-input-command')")
    window.browser.press("collect")
    window.browser.wait_for_text("collect_orders", within="#command-results")
    window.browser.press("xyz")
    window.browser.wait_for_text("No results matching your query", within="#command-results")
    window.browser.press(*[BACKSPACE] * 3)
    window.browser.wait_for_text("collect_orders", within="#command-results")
    window.browser.press(DOWN, ENTER)
    window.browser.wait_for(f"location.pathname === '{page_url(workflow)}'")


def test_a_phone_shows_several_rows_of_every_list_at_once(window, subtests):
    """A4.2: with a line for each column, a row took up to 500 pixels."""
    make_everything(User.objects.get())
    window.browser.resize(380)
    heights = "return [...document.querySelectorAll('#result_list .data-row')].map(row => row.offsetHeight)"
    for model in (Execution, Toolset, User):
        with subtests.test(names(model)):
            window.open(list_url(model))
            assert 0 < max(window.run(heights)) < 220


LONG = "a_name_of_all_the_sixty_four_letters_that_a_tool_can_have_here_abc"


def test_every_list_fits_beside_the_menu(window, subtests):
    """A4.2: with long names, with every badge that there is, sorted, and as long as to be scrolled."""
    make_everything(User.objects.get())
    make_execution(
        make_workflow(make_source("warehouse-of-the-north-and-the-west"), name=LONG, tags=["t" * 60])
    )
    window.browser.resize(1280, 300)
    lists = [list_url(model) for model in LISTS if model is not ProductSettings]
    for address in (*lists, f"{list_url(Workflow)}?o=-4.5.6"):
        with subtests.test(address):
            window.open(address)
            around = "document.querySelector('#result_list').closest('.simplebar-content-wrapper')"
            inner = f"{around} ?? document.documentElement"
            assert window.run(f"const inner = {inner}; return inner.scrollWidth - inner.clientWidth") <= 0


def test_held_changes_are_accepted_from_the_list_of_workflows(window):
    """A5.2: by the badge's row, after a page that shows them."""
    make_everything(User.objects.get())
    changed = Review.objects.get(kind="changed", kept_at=None)
    window.open(list_url(Workflow))
    assert window.run(f"return !!document.querySelector('#row-{changed.pk} a[href=\"{page_url(changed)}\"]')")
    window.click("#action-toggle")
    window.click('[name="action"] option[value="accept_selected"]')
    window.click_through("#changelist-actions button[type=submit]")
    assert window.run("return document.querySelectorAll('[data-accepted]').length") == 2
    window.click_through("#accept-changes [type=submit]")
    assert re.search(r"Accepted: (plain, undescribed|undescribed, plain)\.", window.browser.text())
    assert not Review.objects.awaiting().exists()
    assert window.browser.complaints() == []


def test_many_are_tagged_from_the_list(window):
    """A4.2: the list comes again as it was narrowed."""
    for name in ("billing_1", "billing_2", "billing_3", "report"):
        make_workflow(name=name)
    window.open(f"{list_url(Workflow)}?q=billing*")
    window.click("#action-toggle")
    window.run(
        """
        const choice = document.querySelector("select[name=action]");
        choice.value = "tag_selected";
        choice.dispatchEvent(new Event("change", {bubbles: true}));
        """
    )
    window.click_through("button[name=index]")
    window.click("[name=tags]")
    window.browser.press("money")
    window.click_through("#content form [type=submit]")
    assert window.run("return location.search") == "?q=billing*"
    assert "Tagged: 3." in window.browser.text()
    assert [row.shown_tags for row in Workflow.objects.order_by("name")] == [["money"]] * 3 + [[]]


WITH_ACTIONS = [model for model in LISTS if admin.site._registry[model].actions]


@pytest.mark.parametrize("model", WITH_ACTIONS, ids=names)
def test_every_action_of_every_list_can_be_chosen_and_run(window, model):
    """B8: by the box above the rows, the menu and its button; each answers with a page."""
    make_everything(User.objects.get())
    menu, run = '[name="action"]', "#changelist-actions button[type=submit]"
    window.open(list_url(model))
    offered = window.run(f"return [...document.querySelectorAll('{menu} option')].map(one => one.value)")
    assert set(offered) >= {str(action) for action in admin.site._registry[model].actions}
    window.browser.complaints()
    # Deleting comes last: the others need rows.
    for action in sorted(filter(None, offered), key="delete_selected".__eq__):
        window.open(list_url(model))
        if not rows(window):
            continue
        window.click("#action-toggle")
        window.click(f'{menu} option[value="{action}"]')
        window.click_through(run)
        assert window.run("return !!document.querySelector('#main')"), action
        assert window.browser.complaints() == [], action


SEARCHED = [model for model in LISTS if admin.site._registry[model].search_fields]


def test_every_search_narrows_its_list(window, subtests):
    """B8: typed, and sent with Enter."""
    make_everything(User.objects.get())
    for model in SEARCHED:
        with subtests.test(names(model)):
            window.open(list_url(model))
            whole = rows(window)
            window.click("[name=q]")
            window.browser.press("nothing-is-called-like-this")
            window.follow_key(ENTER)
            assert rows(window) == 0 < whole


TABLES = [model for model in LISTS if admin.site._registry[model].csv_address]


@pytest.mark.parametrize("model", TABLES, ids=names)
def test_a_list_is_downloaded_as_it_is_narrowed(window, model):
    """The link leaves the page as it is; the audit notes what was sent."""
    make_everything(User.objects.get())
    window.open(f"{list_url(model)}?q=plain")
    shown = rows(window)
    window.click("#changelist-csv")
    exported = f"{model._meta.verbose_name_plural}.exported"
    wait_until(lambda: Entry.objects.filter(event=exported).exists(), "the export is entered")
    assert json.loads(Entry.objects.get(event=exported).details) == {"filters": ["q"]}
    assert (rows(window), window.browser.complaints()) == (shown, [])


def test_pages_are_turned(window):
    """B8."""
    make_workflows(60, make_source("big"))
    window.open(list_url(Workflow))
    assert rows(window) == 50
    window.click_through("a[href='?p=2']")
    assert rows(window) == 10


@pytest.mark.parametrize("model", [Workflow, Execution], ids=names)
def test_every_number_below_a_list_leads_to_that_page(window, monkeypatch, model):
    """B8: and the gap between them leads nowhere, instead of to a page that there is not."""
    monkeypatch.setattr(admin.site._registry[model], "list_per_page", 1)
    for workflow in make_workflows(12):
        make_execution(workflow)
    window.open(list_url(model))
    offered = window.run(
        """
        const links = [...document.querySelectorAll("#main a[href*='p=']")];
        return links.map(one => new URL(one.href).searchParams.get("p"));
        """
    )
    assert offered == ["2", "3", "4", "11", "12"]
    assert "4 … 11" in window.browser.text()


LINES = """
const cell = document.querySelector(arguments[0]), lines = [], range = document.createRange();
const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
let height;
for (let text; text = texts.nextNode();)
  for (let at = 0; at < text.length; at++) {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const {top, width} = range.getBoundingClientRect();
    if (!width) continue;
    if (Math.abs(top - height) > 3 || !lines.length) lines.push('');
    lines[lines.length - 1] += text.data[at];
    height = top;
  }
return lines;
"""


def test_names_and_addresses_break_between_their_parts_only(window, settings):
    """At 1280 pixels, with names as companies choose them."""
    settings.PUBLIC_URL = "https://workflows.example.com"
    make_toolset("finance-and-accounting-monthly", token_budget=10)
    window.open(list_url(Toolset))
    lines = window.run(LINES.replace("arguments[0]", "'#result_list tbody .field-address'"))
    assert len(lines) > 1 and all(line.strip()[-1] in "/-" for line in lines[:-1]), lines
