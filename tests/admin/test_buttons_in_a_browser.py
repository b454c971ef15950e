"""The buttons of the admin's pages in a real browser."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import models
from django.http import HttpRequest
from django.utils import timezone

import config.urls  # noqa: F401 - it registers the pages
from catalogue.models import HistoryEntry, Source, Toolset, Workflow, WorkflowFilter
from connectors.registry import BUILT_IN
from executions.models import State, Subscription
from identity.models import AccessToken
from tests.admin.pages import add_url, list_url, page_url
from tests.admin.window import Window, make_everything, make_http_tool
from tests.e2e.webdriver import BACKSPACE, BROWSER, DRIVER, ENTER, MISSING
from tests.executions.controlled_engine import Controlled
from tests.executions.engines import running_wire_engine
from tests.factories import make_execution, make_source, make_toolset, make_workflow

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

BUTTONS = [
    (model, name) for model, pages in admin.site._registry.items() for name in getattr(pages, "buttons", ())
]


def object_with(model: type[models.Model], name: str) -> Any:
    """One whose page has the button."""
    pages: Any = admin.site._registry[model]
    request = HttpRequest()
    request.user = User.objects.get(username="admin")
    return next(
        obj
        for obj in model._default_manager.order_by("pk")
        if name in [one.name for one in pages.get_buttons(request, obj)]
    )


@pytest.fixture
def controlled_runs(transactional_db: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Failed, running and paused ones of an engine that can retry, pause and terminate them."""
    monkeypatch.setitem(BUILT_IN, "controlled", "tests.executions.controlled_engine:ControlledConnector")
    with running_wire_engine() as engine:
        Controlled(engine)
        source = make_source("controlled", base_url=engine.base_url, kind="controlled")
        Source.objects.filter(pk=source.pk).update(configured_at=timezone.now() - timedelta(hours=1))
        workflow = make_workflow(Source.objects.get(pk=source.pk))
        make_execution(workflow, state=State.FAILED, run_id="run-1")
        make_execution(workflow, state=State.RUNNING, run_id="run-2")
        make_execution(workflow, state=State.RUNNING, run_id="run-3", is_held=True)
        yield


@pytest.mark.parametrize(
    ("model", "name"), BUTTONS, ids=lambda one: one if isinstance(one, str) else one.__name__
)
@pytest.mark.usefixtures("controlled_runs")
def test_every_button_of_every_page_does_something_and_is_noted(window, model, name):
    """B8: those that cannot be undone ask before."""
    make_everything(User.objects.get())
    make_http_tool()
    button = getattr(admin.site._registry[model], name).button
    window.open(page_url(object_with(model, name)))
    earlier = list(HistoryEntry.objects.values_list("pk", flat=True))
    window.run("window.isThePageBefore = true")
    window.click(f'form[action$="/{name}/"] button')
    if button.confirm:
        assert window.browser.answer_question() == button.confirm
    window.browser.wait_for("!window.isThePageBefore && document.readyState === 'complete'")
    noted = HistoryEntry.objects.exclude(pk__in=earlier)
    # An entry of the history is no object of its own: what reverting it changes tells of that.
    told = ("Reverted: ", f"Clicked “{button.label}”.")
    assert noted.exists() if button.records else any(entry.message.startswith(told) for entry in noted)


def _superuser_request() -> HttpRequest:
    request = HttpRequest()
    request.user = User(is_superuser=True, is_active=True, is_staff=True)
    return request


FORMS = [
    (model, kind)
    for model, pages in admin.site._registry.items()
    for kind, may in (("add", pages.has_add_permission), ("change", pages.has_change_permission))
    if may(_superuser_request()) and (model, kind) != (Subscription, "add")
]
"""The form of a new subscription needs a choice, which its own test makes."""
PASSWORD = "a long one, of several words"
TYPED: dict[type[models.Model], dict[str, str]] = {
    AccessToken: {"name": "another agent"},
    Group: {"name": "operators"},
    Source: {"name": "orders", "setting_base_url": "http://127.0.0.1:9"},
    Toolset: {"slug": "orders"},
    User: {"username": "newcomer", "password1": PASSWORD, "password2": PASSWORD},
    WorkflowFilter: {"pattern": "called-like-nothing"},
}
"""Into the forms that add one: as little as they take."""


@pytest.mark.parametrize(
    ("model", "kind"), FORMS, ids=lambda one: one if isinstance(one, str) else one.__name__
)
def test_every_form_is_saved_and_says_so(window, model, kind):
    """B8: with the mouse, by the button *Save*."""
    make_everything(User.objects.get())
    if kind == "add":
        window.open(add_url(model) + ("?kind=simplified" if model is Source else ""))
        for name, text in TYPED[model].items():
            window.click(f"[name={name}]")
            window.browser.press(text)
    else:
        rows = model._default_manager.order_by("pk")
        # Groups of roles cannot be edited.
        window.open(page_url((rows.filter(role=None) if model is Group else rows)[0]))
    window.browser.complaints()
    window.click_through("[name=_save]")
    done = "added" if kind == "add" else "changed"
    assert f"was {done} successfully" in window.browser.text()
    assert window.browser.complaints() == []


@pytest.mark.parametrize("model", [AccessToken, WorkflowFilter], ids=lambda one: one.__name__)
def test_a_double_click_on_save_saves_once(window, model):
    """B8: a token's secret is shown, which a second request would leave unseen; nothing is added twice."""
    window.open(add_url(model))
    for name, text in TYPED[model].items():
        window.click(f"[name={name}]")
        window.browser.press(text)
    earlier = model._default_manager.count()
    window.run("window.isThePageBefore = true")
    window.browser.click_twice("[name=_save]")
    window.browser.wait_for("!window.isThePageBefore && document.readyState === 'complete'")
    told = "Copy the token now" if model is AccessToken else "was added successfully"
    assert window.browser.text().count(told) == 1, window.browser.text()
    assert model._default_manager.count() == earlier + 1


def test_a_source_is_tried_before_it_is_saved_without_leaving_the_page(window):
    """B9: what was typed stays, and so does the keyboard's focus."""
    window.open(f"{add_url(Source)}?kind=simplified")
    window.click("[name=name]")
    window.browser.press("orders")
    window.click("[name=setting_base_url]")
    window.browser.press("http://127.0.0.1:9")
    window.browser.tab_to("[name=_test]")
    window.browser.press(ENTER)
    window.browser.wait_for_text("127.0.0.1", within="#test-result")
    window.browser.wait_for("document.activeElement.matches('[name=_test]:not([aria-disabled])')")
    assert window.run("return document.querySelector('[name=name]').value") == "orders"
    assert not Source.objects.exists()


def test_the_list_of_sources_shows_the_first_listing_of_an_added_one(window):
    """A4.3: without a reload by hand."""
    make_source(next_refresh_at=timezone.now())
    window.open(list_url(Source))
    assert "not tried yet" in window.browser.text("#result_list").lower()
    Source.objects.update(health_state="ok", last_refreshed_at=timezone.now())
    window.browser.wait_for(
        "document.querySelector('#result_list').innerText.toLowerCase().includes('working')"
    )
    assert window.browser.complaints() == []


def test_a_filter_is_asked_for_and_then_saved(window):
    """A4.2."""
    make_workflow(name="pay_all")
    make_workflow(name="report")
    window.open(add_url(WorkflowFilter))
    window.click("[name=pattern]")
    window.browser.press("pay*")
    window.click_through("[name=_save]")
    assert "Not saved yet. 1 workflow would be hidden: report." in window.browser.text("#main")
    window.click_through("[name=_save]")
    assert "Not saved yet" not in window.browser.text("#main")
    assert WorkflowFilter.objects.get().pattern == "pay*"
    assert Workflow.objects.count() == 2


def test_the_effect_of_a_filter_is_shown_once_beside_the_question(window):
    """A4.2: and it follows what is typed afterwards."""
    for name in ("pay_all", "report"):
        make_workflow(name=name)
    window.open(add_url(WorkflowFilter))
    window.click("[name=pattern]")
    window.browser.press("pay*")
    window.click_through("[name=_save]")
    window.browser.wait_for_text("1 matched, regardless of other rules", within="#live-preview")
    shown = window.browser.text("#main")
    assert "Not saved yet. 1 workflow would be hidden: report." in shown
    assert shown.count("1 would be hidden report") == 1
    window.click("[name=pattern]")
    window.browser.press(*[BACKSPACE] * 4, "rep*")
    wait_for_preview(window, "1 would be hidden pay_all")
    assert "1 would be hidden report" not in window.browser.text("#main")


COUNT_CHANGES = """
window.changes = 0;
document.querySelector("#toolset_form").addEventListener("input", () => window.changes++);
"""


def wait_for_preview(window: Window, text: str) -> None:
    shown = "document.querySelector('#live-preview').innerText.replace(/\\s+/g, ' ')"
    window.browser.wait_for(f"{shown}.includes({text!r})")


def test_workflows_are_picked_for_a_toolset_and_weighed_while_they_are(window):
    """A4.2, D4: found while typing, one by one or all that are shown."""
    for name in ("billing_month", "billing_year", "report"):
        make_workflow(name=name)
    toolset = make_toolset("finance", token_budget=100)
    window.browser.resize(1280, 2600)
    window.open(page_url(toolset))
    window.browser.wait_for("document.querySelectorAll('#found-workflows input').length === 3")
    window.click("#found-workflows li:last-child input")
    wait_for_preview(window, "1 workflow would be in it.")
    window.browser.run(COUNT_CHANGES)
    window.click("[name=find_workflows]")
    window.browser.press("billing_*")
    window.browser.wait_for("document.querySelectorAll('#found-workflows input').length === 2")
    assert window.browser.run("return window.changes") == 0  # Each would ask for a preview
    window.click("#pick-all-found")
    wait_for_preview(window, "3 workflows would be in it.")
    wait_for_preview(window, "of 100 tokens")
    assert window.browser.text("#picked-count").startswith("3 picked, about ")
    window.click("#picked-workflows li:first-child input")
    wait_for_preview(window, "2 workflows would be in it.")
    window.click_through("[name=_save]")
    picked = toolset.picked.order_by("tool_name").values_list("tool_name", flat=True)
    assert list(picked) == ["billing_month", "billing_year"]
    assert window.browser.complaints() == []


def test_what_a_filter_would_do_is_shown_while_it_is_typed(window):
    """A4.2: a first include filter is warned of."""
    make_workflow(name="pay_all")
    make_workflow(name="report")
    window.open(add_url(WorkflowFilter))
    wait_for_preview(window, "Type a pattern")
    window.click("[name=pattern]")
    window.browser.press("pay*")
    wait_for_preview(window, "1 would be hidden report")
    assert "The first include rule hides" in window.browser.text("#live-preview")
    assert not WorkflowFilter.objects.exists() and window.browser.complaints() == []


def test_a_token_is_rotated_with_the_mouse_and_shows_its_new_secret_once(window):
    """B8: from its page; the overlap is chosen there, and both secrets are named until it is over."""
    make_everything(User.objects.get())
    token = AccessToken.objects.get(name="soon")
    window.open(page_url(token))
    window.click_through(f'a[href$="/{token.pk}/rotate/"]')
    window.run("document.querySelector('[name=overlap_hours]').value = '4'")
    window.click_through("#rotation button")
    window.browser.wait_for_text("Copy the token now")
    shown = window.browser.text("pre")
    rotated = AccessToken.objects.get(pk=token.pk)
    assert shown.startswith(rotated.prefix) and rotated.former_prefix == token.prefix
    window.open(page_url(token))
    assert f"{token.prefix}…" in window.browser.text("#panel-facts")
    assert shown not in window.browser.text()
