"""What a real browser still shows after its user has logged out."""

import pytest

from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_source

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]


@pytest.mark.parametrize("back", range(1, 5))
def test_the_back_button_leads_to_the_login(window, back):
    source = make_source("secret-engine")
    for path in ("/admin/nowhere/", "/admin/password_change/", "/admin/catalogue/source/"):
        window.open(path)
    window.open(f"/admin/catalogue/source/{source.pk}/change/")
    assert "secret-engine" in window.browser.text()
    window.browser.run("document.querySelector('#logout-form').submit()")
    window.browser.wait_for("document.readyState === 'complete' && !document.querySelector('#logout-form')")
    window.browser.run(f"history.go(-{back})")
    window.browser.wait_for("location.pathname === '/admin/login/' && document.readyState === 'complete'")
    assert "secret-engine" not in window.browser.text()
