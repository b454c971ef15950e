"""From the first page to the cause of many failures, and to their new runs."""

import pytest

from executions.models import Execution
from tests.admin.test_failures import make_failures
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]


def test_four_clicks_lead_from_the_overview_to_the_new_runs_of_all_that_failed(window):
    make_failures(26)
    window.open("/admin/")
    window.click_through('a[href*="/failures/"]')
    assert window.run("return document.querySelectorAll('#causes > li').length") == 1
    window.click_through('#causes a[href*="/again/"]')
    window.click_through("#run-again button")
    assert window.run("return document.querySelectorAll('#result_list tbody tr').length") == 26
    assert Execution.objects.filter(door="admin").count() == 26


@pytest.mark.parametrize("width", [1280, 390])
def test_a_choice_narrows_the_failures_and_is_taken_away_again(window, width):
    make_failures(2, caller="token:7", caller_name="claude")
    make_failures(1, error="x" * 5_000, tool_name="t" * 64, caller_name="c" * 255, source_name="s" * 64)
    window.browser.resize(width)
    window.open("/admin/executions/execution/failures/?period=7d")
    count = "return document.querySelectorAll('#causes > li').length"
    assert window.run(count) == 2
    window.click_through('#failure-filters a[href*="caller=token%3A7"]')
    assert window.run(count) == 1
    window.click_through("#failure-filters a.is-chosen[href*='period=7d']:not([href*=caller])")
    assert window.run(count) == 2
    assert window.run("return document.documentElement.scrollWidth <= innerWidth"), "long words are broken"
    window.click_through('#causes li a[href*="cause="]')
    assert window.run("return document.querySelectorAll('#result_list tbody tr').length") == 2
