"""Every control of every page is clicked: none is dead, out of reach or answered with an error."""

import pytest
from django.contrib.auth.models import User

from tests.admin.controls import Sweep
from tests.admin.test_pages_in_a_browser import address_of, pages
from tests.admin.window import in_parts, make_everything, make_http_tool
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

OF_A_PAGE = "#main, dialog, [role=dialog]"
WITH_THE_MENU = f"#nav-sidebar, {OF_A_PAGE}"


@pytest.mark.parametrize("names", in_parts(pages(), 6))
def test_every_control_of_every_page_is_clicked_and_something_comes_of_it(window, client, names, subtests):
    """B8: what a form does once it is sent is shown by other tests; here the server takes what it sends."""
    user = User.objects.get()
    make_everything(user)
    make_http_tool()
    client.force_login(user)
    window.browser.devtools(
        "Browser.setPermission", permission={"name": "clipboard-write"}, setting="granted", origin=window.site
    )
    sweep = Sweep(window, client)
    for name in names:
        with subtests.test(name):
            sweep.page(name, address_of(name), WITH_THE_MENU if name == "index" else OF_A_PAGE)
            faults, sweep.faults = sweep.faults, []
            assert not faults, "\n".join(faults)
