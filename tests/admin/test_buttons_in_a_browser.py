"""The buttons of the admin's pages in a real browser."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import models
from django.http import HttpRequest

import config.urls  # noqa: F401 - it registers the pages
from catalogue.models import HistoryEntry, Review, Source, Workflow, WorkflowFilter
from tests.admin.pages import add_url, list_url, page_url
from tests.admin.window import Window, make_everything, make_http_tool
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_workflow

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)]

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


@pytest.mark.parametrize(
    ("model", "name"), BUTTONS, ids=lambda one: one if isinstance(one, str) else one.__name__
)
def test_every_button_of_every_page_does_something_and_is_noted(
    window: Window, model: type[models.Model], name: str
) -> None:
    """B8: those that cannot be undone ask before."""
    make_everything(User.objects.get())
    make_http_tool()
    button = getattr(admin.site._registry[model], name).button
    window.open(page_url(object_with(model, name)))
    window.run("window.isThePageBefore = true")
    window.click(f'form[action$="/{name}/"] button')
    if button.confirm:
        assert window.browser.answer_question() == button.confirm
    window.browser.wait_for("!window.isThePageBefore && document.readyState === 'complete'")
    noted = HistoryEntry.objects.all()
    assert (noted if button.records else noted.filter(message=f"Pressed “{button.label}”.")).exists()


def test_changes_are_accepted_in_the_list_as_it_shows_them(window: Window) -> None:
    """A5.2: chosen and run with the mouse; the row says which offer it showed."""
    make_everything(User.objects.get())
    changed = Review.objects.get(kind="changed", kept_at=None)
    window.open(list_url(Review))
    window.click(f'#result_list input[name=_selected_action][value="{changed.pk}"]')
    window.browser.wait_for("document.querySelector('#changelist-actions select').checkVisibility()")
    window.click('#changelist-actions option[value="accept_selected"]')
    window.browser.wait_for("document.querySelector('#changelist-actions button').checkVisibility()")
    window.click_through("#changelist-actions button")
    window.browser.wait_for_text("Accepted: plain.")
    assert not Review.objects.filter(pk=changed.pk).exists()
    assert Workflow.objects.get(pk=changed.pk).description.startswith("Ignore")


def test_a_source_is_tried_before_it_is_saved_without_leaving_the_page(window: Window) -> None:
    """B9: what was typed stays."""
    window.open(f"{add_url(Source)}?kind=simplified")
    window.click("[name=name]")
    window.browser.press("orders")
    window.click("[name=setting_base_url]")
    window.browser.press("http://127.0.0.1:9")
    window.click("[name=_test]")
    window.browser.wait_for_text("127.0.0.1", within="#test-result")
    assert window.run("return document.querySelector('[name=name]').value") == "orders"
    assert not Source.objects.exists()


def test_a_filter_is_previewed_then_asked_for_and_then_saved(window: Window) -> None:
    """A4.2."""
    make_workflow(name="pay_all")
    make_workflow(name="report")
    window.open(add_url(WorkflowFilter))
    window.click("[name=pattern]")
    window.browser.press("pay*")
    window.click_through("[name=_preview]")
    assert "1 would be hidden report" in window.browser.text("#main")
    window.click_through("[name=_save]")
    assert "Nothing was saved yet" not in window.browser.text("#main")
    assert WorkflowFilter.objects.get().pattern == "pay*"
    assert Workflow.objects.count() == 2
