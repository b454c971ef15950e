"""Configuration as code by clicks alone, and the API's description, in a real browser."""

import pytest

from catalogue.models import Toolset
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_source, make_toolset, make_workflow

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

AS_CODE = "/admin/catalogue/productsettings/as-code/"
OPEN = ".opblock-delete.is-open"
IMPORT = "form[enctype]"
FILE = "version: 1\ntoolsets:\n  finance:\n    title: Finance\n    rules:\n    - pattern: report*\n"


def test_a_file_is_uploaded_looked_at_and_imported_by_clicks_alone(window, tmp_path):
    """The plan first; nothing is written before the second click."""
    make_toolset("finance", picked=[make_workflow(make_source("orders"))])
    file = tmp_path / "catalogue.yaml"
    file.write_text(FILE)
    window.open("/admin/catalogue/productsettings/")
    window.click_through(f"a[href$='{AS_CODE}']")
    window.browser.complaints()
    window.browser.attach("input[type=file]", file)
    window.click_through("form[enctype] button[type=submit], form[enctype] input[type=submit]")
    assert "1 toolset to change" in window.browser.text()
    assert not Toolset.objects.exclude(title="").exists()
    window.click_through("form:has(input[name=sealed]) button[type=submit]")
    assert "Imported: 1 toolset changed" in window.browser.text()
    assert Toolset.objects.get().title == "Finance"
    assert window.browser.complaints() == []


def test_a_refused_import_leaves_the_form_as_it_was_typed(window, tmp_path):
    """B8: what is wrong has the focus, and screen readers are told of each field."""
    file = tmp_path / "openapi.json"
    file.write_text('{"swagger": "1.2"}')
    window.browser.resize(390)
    window.open("/admin/catalogue/source/import-openapi/")
    window.browser.complaints()
    window.browser.attach("input[type=file]", file)
    for name, typed in (("source", "shop"), ("base_url", "https://api.example.com"), ("only", "list*")):
        window.click(f"[name={name}]")
        window.browser.press(typed)
    window.click_through(f"{IMPORT} button[type=submit]")
    shown = "return [...document.querySelectorAll('[name=source], [name=base_url], [name=only]')]"
    assert window.run(f"{shown}.map(one => one.value)") == ["shop", "https://api.example.com", "list*"]
    assert "This is a Swagger 1.2 document." in window.run("return document.activeElement.textContent")
    described = "document.querySelector('input[type=file]').getAttribute('aria-describedby').split(' ')"
    told = window.run(f"return {described}.map(id => document.getElementById(id).textContent.trim())")
    assert "Choose the file again; browsers do not keep it." in told
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.run(f"return {wide}") == 0
    assert window.browser.complaints() == []


@pytest.mark.parametrize(
    ("path", "shows"), [("/api/docs", ".opblock"), ("/api/docs/redoc", "[data-section-id]")]
)
def test_the_api_is_described_without_asking_anybody_else(window, path, shows):
    """No foreign host, no inline script, no error."""
    window.browser.complaints()
    window.browser.open(f"{window.site}{path}")
    window.browser.wait_for(f"document.querySelector({shows!r})")
    asked = window.run("return performance.getEntriesByType('resource').map(one => one.name)")
    assert {address for address in asked if not address.startswith((window.site, "data:"))} == set()
    assert window.browser.complaints() == []


def test_a_call_can_be_tried_where_it_is_described(window):
    """Also one that changes something: the session's CSRF token goes with it."""
    make_toolset("finance")
    window.browser.open(f"{window.site}/api/docs#/Toolsets/toolsets_destroy")
    window.browser.wait_for("document.querySelector('.opblock')")
    window.browser.wait_for(f"!!document.querySelector('{OPEN} .try-out__btn')")
    window.browser.click(f"{OPEN} .try-out__btn")
    window.browser.click(f"{OPEN} input[placeholder=slug]")
    window.browser.press("finance")
    window.browser.click(f"{OPEN} .execute")
    window.browser.wait_for(f"document.querySelector('{OPEN} .live-responses-table')")
    assert "204" in window.browser.text(f"{OPEN} .live-responses-table")
    assert not Toolset.objects.exists()
