"""The page of a workflow in a real browser: its tabs, what agents see while it is typed, and the way on."""

import pytest

from catalogue.admin.workflow_page import TABS
from catalogue.models import Workflow
from tests.admin.pages import list_url, page_url
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_toolset, make_workflow

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

SHOWN = """
const groups = [...document.querySelectorAll("[id$=-group]")];
return groups.filter((one) => one.checkVisibility()).map((one) => one.id);
"""
HEIGHT = "return document.documentElement.scrollHeight"


def make_arguments(number):
    about = "What the engine says about it, at some length, as engines do where they describe each. " * 3
    one = {"type": "string", "description": about}
    return {"type": "object", "properties": {f"argument_{place}": one for place in range(number)}}


def type_into(window, field, text):
    window.run(
        f"const one = document.getElementById('{field}'); one.value = {text!r};"
        "one.dispatchEvent(new Event('input', {bubbles: true}))"
    )


def test_each_tab_shows_its_part_and_is_in_the_address_and_short(window):
    workflow = make_workflow(input_schema=make_arguments(20))
    window.open(page_url(workflow))
    assert window.run(SHOWN) == ["overview-group"]
    for tab in TABS:
        window.click(f"#{tab}-tab")
        window.browser.wait_for(f"document.getElementById('{tab}-group').checkVisibility()")
        assert window.run(SHOWN) == [f"{tab}-group"]
        assert window.run("return location.hash") == f"#{tab}"
        assert window.run(HEIGHT) <= 2_000
    window.browser.reload()
    window.settle()
    assert window.run(SHOWN) == ["history-group"]


def test_what_agents_see_follows_what_is_typed_without_saving(window):
    workflow = make_workflow(input_schema=make_arguments(1))
    window.open(f"{page_url(workflow)}#text")
    before = int(window.run("return document.querySelector('#preview-tokens').dataset.tokens"))
    type_into(window, "id_description_override", "Ours, and longer than what the engine says of it.")
    window.browser.wait_for("document.querySelector('#preview-description').innerText.startsWith('Ours')")
    assert int(window.run("return document.querySelector('#preview-tokens').dataset.tokens")) > before
    type_into(window, "id_tool_name", "two words")
    window.browser.wait_for("document.querySelector('#preview-problems')")
    assert window.run("return document.querySelector('#preview-name').innerText") == workflow.tool_name
    window.click("#arguments-tab")
    window.click("#id_argument_overrides summary")
    window.run("document.querySelector('[name=argument_overrides-0-kind]').value = 'constant'")
    window.run(
        "const one = document.querySelector('[name=argument_overrides-0-value]'); one.value = 'acme';"
        "one.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    window.browser.wait_for("!document.querySelector('#preview-arguments dt')")
    assert Workflow.objects.get().argument_overrides == {}


def test_one_goes_through_a_filtered_list_in_the_tab_that_is_open(window):
    for name in "abc":
        make_workflow(tool_name=name, enabled=name != "b")
    window.open(f"{list_url(Workflow)}?enabled__exact=1")
    window.click_through("#result_list a.name")
    window.click("#text-tab")
    window.click_through("#next-workflow")
    assert window.run("return document.querySelector('#id_tool_name').value") == "c"
    assert window.run(SHOWN) == ["text-group"]
    window.run("window.isThePageBefore = true")
    window.run("window.dispatchEvent(new KeyboardEvent('keydown', {key: 'PageUp', altKey: true}))")
    window.browser.wait_for("!window.isThePageBefore && document.readyState === 'complete'")
    window.settle()
    assert window.run("return document.querySelector('#id_tool_name').value") == "a"
    window.click_through("#next-workflow")
    window.click_through("#previous-workflow")
    type_into(window, "id_title_override", "Ours")
    window.click_through("[name=_next]")
    assert window.run("return document.querySelector('#id_tool_name').value") == "c"
    assert window.run(SHOWN) == ["text-group"]
    assert Workflow.objects.get(tool_name="a").title == "Ours"


def test_typed_values_are_not_left_without_a_question(window):
    workflow = make_workflow()
    asks = "const event = new Event('beforeunload', {cancelable: true}); return !window.dispatchEvent(event)"
    window.open(f"{page_url(workflow)}#text")
    assert not window.run(asks)
    type_into(window, "id_tool_name", "two words")
    assert window.run(asks)
    window.click_through("[name=_continue]")
    assert window.run(SHOWN) == ["text-group"]
    assert window.run(asks), "what was refused is not saved either"


def test_a_workflow_is_put_into_a_toolset_and_taken_out_with_the_mouse(window):
    workflow, toolset = make_workflow(), make_toolset("finance")
    window.open(page_url(workflow))
    window.run(f"document.querySelector('#add-to-toolset select').value = '{toolset.pk}'")
    window.click_through("#add-to-toolset [name=add]")
    assert list(toolset.picked.all()) == [workflow]
    window.click_through("#toolsets [name=remove]")
    assert not toolset.picked.exists()


def test_below_the_tabs_of_a_telephone_is_what_agents_see_and_nothing_overflows(window):
    workflow = make_workflow(input_schema=make_arguments(3))
    window.browser.resize(390)
    window.open(page_url(workflow))
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    place = "document.querySelector('{}').getBoundingClientRect().top"
    tabs, seen = place.format("#overview-group"), place.format("#as-agents-see-it")
    assert window.run(f"return {tabs} < {seen}")
