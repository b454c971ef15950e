"""The list of workflows in a real browser: what can be clicked and typed there does what it says."""

import pytest
from django.contrib.auth.models import User

from catalogue.models import HistoryEntry, SavedView, Toolset, Workflow
from tests.admin.pages import list_url, page_url
from tests.admin.window import Window, make_everything
from tests.e2e.webdriver import BROWSER, CONTROL, DRIVER, ENTER, ESCAPE, MISSING
from tests.factories import make_source, make_workflow, make_workflows

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

LIST = list_url(Workflow)


def rows(window: Window) -> list[str]:
    names = "[...document.querySelectorAll('#result_list tbody .name')].map(one => one.innerText)"
    return list(window.run(f"return {names}"))


def choice(facet: str, value: str) -> str:
    return f'[data-facet="{facet}"] [data-value="{value}"]'


def run(window: Window, action: str) -> None:
    window.click(f'[name="action"] option[value="{action}"]')
    window.click_through("#changelist-actions button[type=submit]")


def test_workflows_are_switched_on_and_off_in_the_list(window):
    """A4.4: with one click each, and the row says at once what agents see."""
    workflow = make_workflow(enabled=False)
    window.open(list_url(Workflow))
    switch, state = f"#switch-{workflow.pk}", f"#state-{workflow.pk}"
    window.click(switch)
    window.browser.wait_for_text("EXPOSED", within=state)
    window.settle()
    assert window.run(f"return document.querySelector('{switch}').checked")
    assert Workflow.objects.get().enabled
    window.click(switch)
    window.browser.wait_for_text("DISABLED", within=state)
    assert not Workflow.objects.get().enabled
    assert window.browser.complaints() == []


def test_a_phone_shows_several_workflows_at_once_and_where_the_keyboard_is(window):
    """A4.2, B8: a line for each of ten columns filled the screen with one workflow."""
    make_workflow(tags=["finance", "monthly"], read_only_hint=True)
    window.browser.resize(380)
    window.open(list_url(Workflow))
    height, of_screen = window.run(
        "return [document.querySelector('.data-row').offsetHeight, document.documentElement.scrollWidth]"
    )
    assert (height < 250, of_screen <= 380) == (True, True), (height, of_screen)
    window.browser.tab_to("[id^=switch-]")
    assert window.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_facets_choose_and_exclude_several_values_and_chips_take_them_away(window):
    source = make_source("erp")
    make_workflow(source, name="a", tags=["billing"])
    make_workflow(source, name="b", tags=["support"])
    make_workflow(source, name="c", tags=["billing", "old"])
    make_workflow(name="d", enabled=False)
    window.open(f"{LIST}?q=what&p=1")
    for facet, value in (("tag", "billing"), ("tag", "support")):
        window.click_through(f"{choice(facet, value)} .wish")
    assert rows(window) == ["a", "b", "c"]
    window.click_through(f"{choice('tag', 'old')} .exclusion")
    assert (rows(window), window.run("return location.search")) == (
        ["a", "b"],
        "?not-tag=old&q=what&tag=billing&tag=support",
    )
    assert window.run("return document.querySelectorAll('#chips .chip').length") == 3
    window.click_through("#chips .is-excluded a")
    assert rows(window) == ["a", "b", "c"]
    window.click_through(f"{choice('tag', 'support')} .wish")
    assert rows(window) == ["a", "c"]
    window.click_through("#chips-clear")
    assert (rows(window), window.run("return location.search")) == (["a", "b", "c", "d"], "?q=what")
    assert window.browser.complaints() == []


def test_every_facet_opens_and_its_numbers_are_those_of_the_rows(window, subtests):
    make_everything(User.objects.get())
    window.open(LIST)
    whole = len(rows(window))
    facets = window.run("return [...document.querySelectorAll('.facet')].map(one => one.dataset.facet)")
    assert {
        "visibility",
        "source__id__exact",
        "is",
        "toolset",
        "changed",
        "category",
        "overridden",
        "use",
    } <= {*facets}
    for facet in facets:
        with subtests.test(facet):
            window.open(LIST)
            first = f"[data-facet={facet}]"
            if not window.run(f"return document.querySelector('{first}').open"):
                window.click(f"{first} > summary")
            count = int(window.run(f"return document.querySelector('{first} .count').innerText"))
            window.click_through(f"{first} .wish")
            assert len(rows(window)) == count <= whole
            window.click_through(f"{first} .is-wanted .exclusion, {first} .exclusion")
            assert len(rows(window)) == whole - count


def test_facets_that_are_counted_after_the_page_work_as_others_do(window, monkeypatch):
    monkeypatch.setattr("catalogue.admin.workflow_list.COUNTED_AT_ONCE", 1)
    make_workflow(name="a", tags=["billing"])
    make_workflow(name="b")
    window.open(LIST)
    window.browser.wait_for(f"document.querySelector(`{choice('tag', 'billing')}`)")
    window.click_through(f"{choice('tag', 'billing')} .wish")
    assert rows(window) == ["a"]
    window.browser.resize(390, 844)
    window.open(LIST)
    window.click("#changelist-filter-open")
    window.browser.wait_for("document.querySelector('.facets-close')?.checkVisibility()")
    window.click(".facets-close")
    window.browser.wait_for("!document.querySelector('.facets').checkVisibility()")
    assert window.browser.complaints() == []


def test_on_a_phone_the_facets_are_a_drawer(window):
    make_workflow(name="a", tags=["billing"])
    make_workflow(name="b")
    window.browser.resize(390, 844)
    window.open(LIST)
    assert not window.run("return document.querySelector('.facets').checkVisibility()")
    window.click("#changelist-filter-open")
    window.browser.wait_for("document.activeElement.closest('#changelist-filter[role=dialog]')")
    window.browser.press(ESCAPE)
    window.browser.wait_for("!document.querySelector('.facets').checkVisibility()")
    window.click("#changelist-filter-open")
    window.click_through(f"{choice('tag', 'billing')} .wish")
    assert rows(window) == ["a"]
    window.click("#changelist-filter-open")
    window.click(".facets-close")
    window.browser.wait_for("!document.querySelector('.facets').checkVisibility()")


def test_a_row_has_one_line_and_a_laptop_shows_twenty(window):
    long = "a_name_of_all_the_sixty_four_letters_that_a_tool_can_have_here_abc"
    words = {"description": "Sends the invoices of a month. " * 20, "tags": ["t" * 60, "finance"]}
    make_workflow(name=long, destructive_hint=True, resembles="list_workflows", warning="x", **words)
    make_workflows(40, make_source("warehouse-of-the-north-and-the-west"), read_only_hint=True, **words)
    window.browser.resize(1440, 900)
    window.open(LIST)
    heights = window.run("return [...document.querySelectorAll('.data-row')].map(one => one.offsetHeight)")
    assert max(heights) <= 32
    widths = window.run("return [...document.querySelectorAll('a.name')].map(one => one.offsetWidth)")
    assert min(widths) > 60, "marks leave room for the name"
    ends = "[...document.querySelectorAll('.data-row')].map(one => one.getBoundingClientRect().bottom)"
    assert sum(end < 840 for end in window.run(f"return {ends}")) >= 20
    window.run("scrollTo(0, 500)")
    assert window.run("return document.querySelector('#result_list th').getBoundingClientRect().top") == 0


def test_a_selection_stays_while_filters_and_pages_change_and_after_an_action(window):
    make_workflows(60, make_source("large"), tags=["large"], enabled=False, content_hash="a")
    make_workflow(name="other", enabled=False)
    told = "return document.querySelector('#selection [data-text]').innerText.match(/[0-9]+/g).map(Number)"
    window.open(LIST)
    window.run("sessionStorage.clear()")
    window.open(LIST)
    window.click("tbody tr:nth-child(2) .action-select")
    window.click_through("a[href='?p=2']")
    window.click("tbody tr:last-child .action-select")
    assert window.run(told) == [2, 1]
    window.open(f"{LIST}?q=other")
    assert window.run(told) == [2, 0]
    window.click("tbody .action-select")
    assert window.run(told) == [3, 1]
    window.open(f"{LIST}?q=nothing-like-this")
    assert window.run(told) == [3, 0]
    window.open(f"{LIST}?tag=large")
    run(window, "enable_selected")
    assert Workflow.objects.filter(enabled=True).count() == 3
    assert window.run(told) == [3, 1]
    run(window, "add_selected_to_toolset")
    window.click("[name=slug]")
    window.browser.press("billing")
    window.click("[name=title]")
    window.browser.press("Billing")
    window.click_through("#content form [type=submit]")
    assert Toolset.objects.get(slug="billing").picked.count() == 3
    window.click("#selection-clear")
    assert window.run("return document.querySelectorAll('.action-select:checked').length") == 0
    assert not window.run("return document.querySelector('#selection').checkVisibility()")
    window.open(LIST)
    assert not window.run("return document.querySelector('#selection').checkVisibility()")
    assert window.browser.complaints() == []


def test_the_texts_of_a_row_are_edited_in_place(window):
    workflow, other = make_workflow(name="first", tags=["one"]), make_workflow(name="second")
    window.open(LIST)
    row = f"#row-{workflow.pk}"
    window.click(f"{row} [data-edit]")
    window.browser.wait_for(f"document.activeElement.matches('{row} [name=tool_name]')")
    window.run(f"document.querySelector('{row} [name=tool_name]').value = 'second'")
    window.click(f"{row} [type=submit]")
    window.browser.wait_for(f"document.querySelector('{row} [data-error=tool_name]')")
    window.run(f"document.querySelector('{row} [name=tool_name]').value = 'send_invoices'")
    window.click(f"{row} [name=title_override]")
    window.browser.press("Send invoices")
    window.click(f"{row} [name=description_override]")
    window.browser.press("Sends all.")
    window.click(f"{row} [name=tags_override]")
    window.browser.press("billing, mail", ENTER)
    window.browser.wait_for(f"document.querySelector('{row} .name')?.innerText === 'send_invoices'")
    workflow.refresh_from_db()
    assert (workflow.title, workflow.shown_description, workflow.shown_tags) == (
        "Send invoices",
        "Sends all.",
        ["billing", "mail"],
    )
    assert [*workflow.live_aliases] == ["first"]
    assert HistoryEntry.of(workflow).count() == 1
    window.click(f"#row-{other.pk} [data-edit]")
    window.browser.wait_for(f"document.querySelector('#row-{other.pk} [data-cancel]')")
    window.click(f"#row-{other.pk} [data-cancel]")
    window.browser.wait_for(f"document.querySelector('#row-{other.pk} .name')")
    assert window.browser.complaints() == []


def test_rows_are_walked_selected_edited_and_opened_by_keys(window):
    first, second = make_workflow(name="a"), make_workflow(name="b")
    browser = window.browser
    window.open(LIST)
    browser.press("j", "j")
    browser.wait_for(f"document.activeElement.closest('#row-{second.pk}')")
    browser.press("k", "x")
    browser.wait_for(f"document.querySelector('#row-{first.pk} .action-select').checked")
    window.click(f"#row-{first.pk} .action-select")
    browser.wait_for(f"!document.querySelector('#row-{first.pk} .action-select').checked")
    browser.press("j")
    browser.wait_for(f"document.activeElement.closest('#row-{second.pk}')")
    browser.press("e")
    browser.wait_for(f"document.activeElement.matches('#row-{second.pk} [name=tool_name]')")
    browser.press("jx")
    browser.wait_for("document.activeElement.value?.startsWith('jx')")  # Typing is no command
    browser.press(ESCAPE)
    browser.wait_for(f"document.activeElement.matches('#row-{second.pk} .name')")
    browser.press("?")
    browser.wait_for("document.querySelector('#list-help').open")
    browser.press(ESCAPE)
    browser.wait_for("!document.querySelector('#list-help').open")
    window.click("#list-help-open")
    browser.wait_for("document.querySelector('#list-help').open")
    window.click("#list-help form button")
    browser.wait_for("!document.querySelector('#list-help').open")
    window.click(f"#row-{first.pk} .action-select")
    browser.press_together(CONTROL, "k")
    browser.wait_for("document.activeElement.matches('#search-input-command')")
    browser.press(ESCAPE)
    browser.wait_for("!document.body.classList.contains('overflow-hidden')")
    window.open(LIST)
    browser.press("/")
    browser.wait_for("document.activeElement.matches('#searchbar')")
    browser.press("b")
    window.follow_key(ENTER)
    assert rows(window) == ["b"]
    browser.press("j")
    window.follow_key("o")
    assert window.run("return location.pathname") == page_url(second)


def test_a_view_is_saved_shared_opened_and_deleted(window):
    make_workflow(name="a", tags=["billing"])
    make_workflow(name="b")
    window.open(f"{LIST}?tag=billing&p=1")
    window.click("#view-save summary")
    window.click("#view-save [name=name]")
    window.browser.press("Billing")
    window.click("#view-save [name=shared]")
    window.click_through("#view-save button")
    view = SavedView.objects.get()
    assert (view.name, view.query, view.user) == ("Billing", "tag=billing", None)
    assert window.run(f"return document.querySelector('[data-view=\"{view.pk}\"]').ariaCurrent") == "page"
    window.click_through("#views a")
    assert rows(window) == ["a", "b"]
    window.click_through(f'[data-view="{view.pk}"]')
    assert rows(window) == ["a"]
    window.click_through("#views form[action$='/delete/'] button")
    assert not SavedView.objects.exists()
    assert (rows(window), window.browser.complaints()) == (["a", "b"], [])
