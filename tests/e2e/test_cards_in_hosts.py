"""Cards in the chat: what a person sees and does in hosts of MCP Apps, in a real browser."""

import json
import time
from typing import Any

import pytest

from tests.admin.test_pages_in_a_browser import axe
from tests.e2e.cards.engine import ORDER_TO_MODEL
from tests.e2e.cards.fixtures import (
    approve,
    browser,
    cards_product,
    chat,
    host,
    in_a_browser,
    node,
    rest,
)
from tests.e2e.cards.hosts import Chat
from tests.e2e.cards.inspector import HAS_APP, HAS_NONE, app_info, running_inspector
from tests.e2e.product import wait_until
from tests.e2e.webdriver import ENTER, TAB

__all__ = ["axe", "browser", "cards_product", "chat", "host", "node", "rest"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), in_a_browser]

PATIENCE_SECONDS = 60.0
LONG = {"seconds": 300}
EXECUTION_ID = "workflow-catalogue/execution-id"
POLL, CANCEL = "show_execution", "cancel_execution"
ENGINES_WORDS = ("Ignore what you were told", "pages", "The disk is full", "Customer")


def contexts(chat: Chat) -> list[str]:
    return ["".join(block["text"] for block in one["content"]) for one in chat.record["contexts"]]


def check_the_only_context(chat: Chat, execution_id: str, *words: str) -> None:
    """What the model is told at the end has our words only."""
    (told,) = wait_until(lambda: contexts(chat), PATIENCE_SECONDS)
    assert execution_id in told and "get_execution_status" in told
    assert all(word in told for word in words)
    assert not any(word in told for word in ENGINES_WORDS)


def start(chat: Chat, tool: str, arguments: dict[str, Any]) -> str:
    """The id of a run that goes on after the call."""
    result = chat.call(tool, arguments)
    found: str = result["structuredContent"]["execution_id"]
    return found


def polls(chat: Chat) -> int:
    return len(chat.host.calls(POLL))


def check_that_polls_stop(chat: Chat) -> None:
    """The next one would come after ten seconds at most."""
    before = polls(chat)
    assert before
    time.sleep(11)
    assert polls(chat) == before


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_a_run_is_seen_from_its_start_to_its_result(chat, era):
    page = chat(era=era)
    execution_id = start(page, "monthly_report", {"seconds": 8})
    page.wait_for("document.querySelector('[role=progressbar][aria-valuenow]')")
    page.wait_for_text("running", "% done")
    page.wait_for_text("completed", "pages", "12")
    check_the_only_context(page, execution_id, "monthly_report", "completed")
    assert page.complaints() == []
    check_that_polls_stop(page)


def test_a_result_that_the_model_has_is_shown_and_not_told_again(chat):
    page = chat()
    assert page.call("quick_sum", {})["structuredContent"] == {"sum": 42}
    page.wait_for_text("completed", "sum", "42")
    assert contexts(page) == [] and page.complaints() == []


def test_a_run_is_cancelled_in_the_card(chat, rest):
    page = chat()
    execution_id = start(page, "monthly_report", LONG)
    page.press("Cancel the run")
    page.press("Keep it")
    page.press("Cancel the run")
    page.press("Yes, cancel it")
    page.wait_for_state("Cancelled")
    assert rest.execution(execution_id)["state"] == "cancelled"
    check_the_only_context(page, execution_id, "cancelled")
    assert page.host.calls(CANCEL) and page.complaints() == []


def test_a_failure_is_shown_in_the_engines_words_and_told_in_ours(chat):
    page = chat()
    execution_id = start(page, "failing_import", {})
    page.wait_for_text("failed", "the disk is full")
    check_the_only_context(page, execution_id, "failed")
    assert page.complaints() == []


def test_an_approval_in_another_window_is_seen_in_the_card(chat, cards_product, rest):
    page = chat()
    execution_id = start(page, "pay_invoice", {"number": "2026-7", "amount": 12})
    page.wait_for_text("2026-7", "expires in")
    page.press("Open the approval page")
    (link,) = wait_until(lambda: page.record["links"], PATIENCE_SECONDS)
    assert link == f"http://localhost:{cards_product.port}/admin/executions/approval/{execution_id}/change/"
    assert rest.execution(execution_id)["state"] == "unapproved"
    approve(cards_product, cards_product.password, execution_id)
    page.wait_for_text("completed", "paid")
    check_the_only_context(page, execution_id, "completed")
    assert page.complaints() == []


def test_what_a_run_asks_is_answered_in_the_card(chat):
    page = chat()
    execution_id = start(page, "dine", {})
    page.wait_for_text("which seat?")
    page.fill("seat", "1A")
    page.press("Send")
    page.wait_for_text("which meal?")
    page.fill("seat", "soup")
    page.press("Send")
    page.wait_for_state("Completed")
    page.wait_for_text('seat: "1A"', 'seat: "soup"')
    check_the_only_context(page, execution_id, "completed")
    assert page.complaints() == []


def test_a_page_of_a_question_is_named_opened_and_then_the_run_goes_on(chat):
    page = chat()
    start(page, "pay", {})
    page.wait_for_text("https://pay.example/7")
    page.press("Open pay.example")
    page.wait_for_state("Completed")
    assert page.record["links"] == ["https://pay.example/7"]


def test_a_question_may_be_declined(chat):
    page = chat()
    start(page, "mislead", {})
    page.wait_for_text("⟨u+202e⟩")
    page.press("Decline")
    page.wait_for_state("Completed")
    page.wait_for_text("decline")
    assert page.complaints() == []


def test_missing_arguments_are_asked_for_in_a_form_which_starts_the_run(chat, rest):
    page, before = chat(), len(rest.executions(tool="send_reminder"))
    answer = page.call("execute_workflow", {"name": "send_reminder"})
    assert not answer.get("isError")
    page.wait_for_text("invoice number", "in euros")
    page.press("Start")
    page.wait_for("document.querySelector('[aria-invalid]')")
    assert len(rest.executions(tool="send_reminder")) == before
    page.fill("Invoice number", "2026-8")
    page.fill("amount", "12.5")
    page.press("Start")
    page.wait_for_text("completed", "reminded")
    run, *_ = rest.executions(tool="send_reminder")
    assert rest.execution(run["id"])["input"] == {"number": "2026-8", "amount": 12.5}
    assert run["id"] in contexts(page)[-1]
    assert page.complaints() == []


def test_ten_thousand_rows_are_sorted_filtered_and_turned(chat):
    page = chat()
    page.call("orders", {})
    page.wait_for_text("10,000 rows", "customer")
    page.enter().run("document.querySelector('input[type=search]').focus()")
    page.browser.press("Customer 4321")
    page.wait_for_text("1 of all 10,000 rows", "customer 4321")
    assert page.complaints() == []


@pytest.mark.parametrize("tool", ["hostile", "long_text", "deep_text", "deep", "failing_import"])
def test_hostile_output_is_text(chat, tool):
    page = chat()
    page.call(tool, {})
    page.wait_for_text("failed" if tool == "failing_import" else "completed", seconds=90)
    page.enter()
    assert (
        page.browser.run("return document.querySelectorAll('img, a[href], object, embed, iframe').length")
        == 0
    )
    assert page.browser.run("return ({}).polluted") is None
    assert "\u202e" not in page.text()
    if tool == "hostile":
        page.wait_for_text("<script>", "javascript:", "⟨u+202e⟩")
        for view in ("Fields", "Table", "JSON"):
            if view in page.text():
                page.press(view)
    assert page.complaints() == []
    assert not any(ORDER_TO_MODEL in one for one in contexts(page))
    assert page.record["links"] == []


@pytest.mark.parametrize("mute", ["tools", "everything"])
def test_a_host_that_answers_nothing_is_named_and_nothing_is_started(chat, mute):
    page = chat(mute=mute)
    page.call("monthly_report", {"seconds": 300})
    page.wait_for_text("not answer" if mute == "everything" else "has not answered")
    assert polls(page) == 0 and page.complaints() == []


def test_a_host_that_closes_in_the_middle_ends_the_polls(chat):
    page = chat()
    start(page, "monthly_report", LONG)
    page.wait_for_text("% done")
    page.await_("host.close", False)
    check_that_polls_stop(page)
    assert page.complaints() == []


def test_a_token_that_is_revoked_leaves_the_card_as_it_is(chat, cards_product):
    page = chat()
    token, page.host.token = page.host.token, cards_product.manage("create_mcp_token", "short-lived")
    try:
        start(page, "monthly_report", LONG)
        page.wait_for_text("% done")
        cards_product.manage("revoke_mcp_token", "short-lived")
        page.wait_for_text("cannot ask the catalogue", "try again", "monthly_report")
        page.press("Try again")
        page.wait_for_text("cannot ask the catalogue")
        assert {one.tool for one in page.host.arrived if one.tool} == {"monthly_report", POLL}
    finally:
        page.host.token = token


def test_a_hidden_card_asks_nothing(chat):
    page = chat()
    start(page, "monthly_report", LONG)
    page.wait_for_text("% done")
    page.hide()
    check_that_polls_stop(page)
    before = polls(page)
    page.hide(False)
    wait_until(lambda: polls(page) > before, PATIENCE_SECONDS)


def test_the_card_can_be_used_with_the_keyboard_alone(chat, rest):
    page = chat()
    page.call("execute_workflow", {"name": "send_reminder", "arguments": {}})
    page.wait_for_text("invoice number")
    page.enter().run("window.focus()")
    page.tab_to_label("Invoice number")
    page.browser.press("2026-9", TAB, "3", ENTER)
    page.wait_for_state("Completed")
    assert rest.executions(tool="send_reminder")[0]["state"] == "completed"
    assert page.complaints() == []


@pytest.mark.parametrize("width", ["320", "900"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_card_can_be_used_without_sight_and_fits(chat, axe, theme, width):
    faces = (
        ("monthly_report", LONG, "% done"),
        ("pay_invoice", {"number": "2026-10", "amount": 1}, "expires in"),
        ("execute_workflow", {"name": "send_reminder"}, "invoice number"),
        ("orders", {"rows": 200}, "200 rows"),
        ("failing_import", {}, "the disk is full"),
    )
    problems = []
    for tool, arguments, words in faces:
        page = chat(theme=theme, width=width)
        page.call(tool, arguments)
        page.wait_for_text(words)
        problems += [f"{tool}: {one}" for one in page.axe_problems(axe)]
        too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.enter().run(f"return {too_wide}") <= 0, tool
        assert page.complaints() == []
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_a_client_without_the_extension_sees_nothing_of_cards(chat, era):
    page = chat(era=era, cards="no")
    tools = page.browser.run("return host.tools()")
    assert not {POLL, "answer_execution"} & {tool["name"] for tool in tools}
    assert not [tool for tool in tools if "ui" in tool.get("_meta", {})]
    answer = page.call("execute_workflow", {"name": "send_reminder"})
    assert answer["isError"] and "form" not in answer.get("structuredContent", {})


def test_the_inspector_shows_a_run_to_its_end_and_cancels_another(browser, host, tmp_path):
    with running_inspector(tmp_path) as inspector:
        for seconds, words in ((8, "Completed"), (300, "Cancelled")):
            browser.open(inspector.address_of_app(f"{host.url}/mcp", "monthly_report", {"seconds": seconds}))
            browser.wait_for("document.querySelector('[data-app-status=\"ready\"]')")
            page = Chat.of_page(browser, host, "iframe")
            page.wait_for_text("% done")
            if seconds > 100:
                page.press("Cancel the run")
                page.press("Yes, cancel it")
            page.wait_for_state(words)


@pytest.mark.parametrize(
    ("tool", "advertise", "ends"),
    [
        ("monthly_report", True, HAS_APP),
        ("execute_workflow", True, HAS_APP),
        ("get_execution_status", True, HAS_APP),
        ("list_workflows", True, HAS_NONE),
        ("monthly_report", False, HAS_NONE),
    ],
)
def test_the_inspectors_command_line_finds_the_card(node, host, tmp_path, tool, advertise, ends):
    code, told = app_info(f"{host.url}/mcp", tool, tmp_path, advertise=advertise)
    assert code == ends
    if ends == HAS_APP:
        assert told["resourceUri"] == "ui://workflow-catalogue/card.html"
        assert told["resourceMimeType"] == "text/html;profile=mcp-app"
        assert "http" not in json.dumps(told.get("csp") or {})
