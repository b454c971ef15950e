"""The form of a run in a real browser: rows, alternatives, files, and copying."""

import base64
import json

import pytest

from catalogue.models import Workflow
from executions.models import Execution
from tests.admin.test_running import NESTED, run_url
from tests.admin.window import Window
from tests.e2e.webdriver import BROWSER, DOWN, DRIVER, ENTER, MISSING
from tests.factories import make_workflow

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]


def make_nested() -> Workflow:
    file = {"type": "string", "contentEncoding": "base64"}
    return make_workflow(input_schema=NESTED | {"properties": NESTED["properties"] | {"picture": file}})


def press(window: Window, change: str) -> None:
    """Click on a button that changes the form, and wait until the server's answer is there."""
    window.run("document.getElementById('run-form').isBefore = true")
    window.click(f'button[name="change"][value="{change}"]')
    window.browser.wait_for("!document.getElementById('run-form').isBefore")
    window.settle()


def write(window: Window, name: str, text: str) -> None:
    window.click(f'[name="{name}"]')
    window.browser.press(text)


def value_of(window: Window, name: str) -> str:
    return str(window.run(f"return document.querySelector('[name=\"{name}\"]').value"))


def focused(window: Window) -> str:
    return str(window.run("return document.activeElement.name + ' ' + document.activeElement.value"))


def test_rows_objects_and_alternatives_are_filled_in_and_run(window, tmp_path):
    window.open(run_url(make_nested()))
    press(window, "add /lines")
    assert focused(window) == "argument/lines/0/item "
    window.browser.press("pear")
    press(window, "add /lines")
    window.browser.press("fig")
    press(window, "up /lines/1")
    assert focused(window) == "argument/lines/0/item fig"
    assert value_of(window, "argument/lines/0/item") == "fig"
    press(window, "down /lines/0")
    press(window, "remove /lines/0")
    assert value_of(window, "argument/lines/0/item") == "fig"
    press(window, "open /customer")
    write(window, "argument/customer/mail", "someone")
    window.run("document.getElementById('run-form').isBefore = true")
    window.run(
        "const choice = document.querySelector('[name=\"argument/pay/choice\"]');"
        "choice.value = '1'; choice.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    window.browser.wait_for("!document.getElementById('run-form').isBefore")
    write(window, "argument/pay/1/days", "14")
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG dot")
    window.browser.attach('[data-fills="argument/picture"]', picture)
    encoded = base64.b64encode(b"\x89PNG dot").decode()
    window.browser.wait_for(f"document.getElementById('argument/picture').value === '{encoded}'")

    window.click_through('button[name="run"]')
    window.browser.wait_for("document.activeElement.name === 'argument/customer/mail'")
    assert value_of(window, "argument/customer/mail") == "someone"
    window.click('[data-problems] a[href="#argument/customer/mail"]')
    write(window, "argument/customer/mail", "@example.com")
    window.run("document.querySelector('[name=\"argument/customer/mail\"]').value = 'a@example.com'")
    window.click_through('button[name="run"]')
    assert Execution.objects.get().payload.input == {
        "lines": [{"item": "fig"}],
        "customer": {"mail": "a@example.com"},
        "pay": {"type": "invoice", "days": 14},
        "picture": encoded,
    }


def test_a_file_that_is_too_large_is_refused_at_its_field(window, tmp_path):
    window.open(run_url(make_nested()))
    window.run("document.querySelector('[data-max]').dataset.max = 70")
    large = tmp_path / "large"
    large.write_bytes(b"x" * 80)
    window.browser.attach('[data-fills="argument/picture"]', large)
    window.browser.wait_for("document.querySelector('[data-file-problem]').textContent")
    assert value_of(window, "argument/picture") == ""


def test_json_and_calls_are_one_press_away_and_back(window):
    window.open(run_url(make_nested()))
    press(window, "example")
    press(window, "json /lines")
    press(window, "fields /lines")
    press(window, "json")
    assert json.loads(value_of(window, "json"))["lines"] == [{"item": "text", "count": 2}]
    press(window, "fields")
    press(window, "remove /customer")
    window.browser.devtools(
        "Browser.setPermission", permission={"name": "clipboard-write"}, setting="granted", origin=window.site
    )
    for change, word in (("tool", "tools/call"), ("curl", "YOUR_TOKEN")):
        press(window, change)
        window.browser.wait_for("document.getElementById('copied').selectionEnd > 0")
        assert word in window.run("return document.getElementById('copied').value")
        window.browser.wait_for("document.querySelector('[role=status]').checkVisibility()")
    window.click_through('button[name="test"]')
    assert Execution.objects.get().door == "test"


def test_a_run_is_filled_in_and_started_with_the_keyboard(window):
    """The keys of a button, and then what it put into the form, without the mouse."""
    browser = window.browser
    window.open(run_url(make_nested()))
    browser.tab_to('button[value="add /lines"]')
    browser.press(ENTER)
    browser.wait_for("document.activeElement.name === 'argument/lines/0/item'")
    browser.press("pear")
    browser.tab_to('[name="argument/pay/choice"]')
    browser.press(DOWN, DOWN)
    browser.wait_for("document.querySelector('[name=\"argument/pay/1/days\"]')")
    window.settle()
    assert not Execution.objects.exists()
    browser.tab_to('[name="argument/pay/1/days"]')
    browser.press("7")
    window.follow_key(ENTER)
    assert Execution.objects.get().payload.input == {
        "lines": [{"item": "pear"}],
        "pay": {"type": "invoice", "days": 7},
    }
