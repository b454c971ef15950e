"""Three jobs by keyboard alone: no click, and the focus is seen at each stop. Typed texts are not counted."""

import pytest

from catalogue.models import HistoryEntry, Review, Toolset, Workflow
from executions.models import Execution
from tests.admin.keyboard import Keyboard, watched_keyboard
from tests.admin.test_failures import make_failures
from tests.admin.test_jobs_in_a_browser import PICKED, RENAMED, call, engine  # noqa: F401 - a fixture
from tests.admin.test_queue_in_a_browser import IGNORE, SHOWN, make_changes
from tests.e2e.webdriver import BROWSER, CONTROL, DRIVER, ENTER, ESCAPE, MISSING, SPACE, TAB

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

WORKFLOWS = '#nav-sidebar a[href="/admin/catalogue/workflow/"]'


@pytest.fixture
def keyboard(window):
    window.browser.resize(1280, 800)
    with watched_keyboard(window) as keyboard:
        yield keyboard


def curate(keyboard: Keyboard, department: str, names: list[str]) -> tuple[list[str], str]:
    """Find the named workflows, rename and describe the first ones, and publish them all to a team.

    Returns the new names, and the token that the page shows."""
    window = keyboard.window
    keyboard.tab_to(WORKFLOWS)
    keyboard.follow()
    keyboard.press("/")
    keyboard.type(f"name:{','.join(names)}")
    keyboard.follow()
    assert window.run("return document.querySelectorAll('#result_list .data-row').length") == len(names)
    if window.run("return document.querySelector('#selection').checkVisibility()"):
        keyboard.tab_to("#selection-clear")
        keyboard.press(SPACE)
    keyboard.press("j")
    keyboard.press("e", until="document.activeElement.matches('.edit-row [name=tool_name]')")
    renamed = [f"{department}_job_{number}" for number in range(RENAMED)]
    for number, name in enumerate(renamed):
        row = window.run("return document.activeElement.closest('tr').id")
        keyboard.type(name)
        keyboard.press(TAB, TAB)
        keyboard.type(f"Does job {number} of the department {department}.")
        is_next = f"document.activeElement.matches('.edit-row:not(#{row}) [name=tool_name]')"
        keyboard.press_together(CONTROL, ENTER, until=is_next)
        assert window.browser.text(f"#{row}.data-row .name") == name
    keyboard.press(ESCAPE, until="!document.querySelector('.edit-row')")  # The next one keeps its texts
    keyboard.tab_to("#action-toggle", back=True)
    keyboard.press(SPACE, until="document.querySelector('[name=action]').checkVisibility()")
    keyboard.tab_to("[name=action]", back=True)
    window.browser.press("Publish")
    keyboard.tab_to("#changelist-actions button[type=submit]")
    keyboard.follow()
    keyboard.skip_to_the_content()
    keyboard.tab_to("#id_title")
    keyboard.type(department.capitalize())
    keyboard.tab_to("#id_token_name")
    keyboard.type(f"{department} agent")
    keyboard.follow()
    return renamed, window.run("return document.querySelector('#test-call [name=token]').value")


def test_thirty_workflows_of_two_departments_are_curated_and_called_by_keyboard(
    keyboard,
    engine,  # noqa: F811
    settings,
):
    """From 528 listed workflows to two toolsets, ten of the tools renamed and described."""
    site = keyboard.window.site
    settings.PUBLIC_URL = site
    unflagged = Workflow.objects.filter(warning="", resembles="")
    names = list(unflagged.order_by("pk").values_list("tool_name", flat=True))
    departments = {"billing": names[:PICKED], "support": names[100 : 100 + PICKED]}
    keyboard.window.open("/admin/")
    for department, picked in departments.items():
        renamed, token = curate(keyboard, department, picked)
        listed, answer = call(f"{site}/mcp/{department}", token, renamed[0])
        assert not answer.is_error
        served = {one.tool_name for one in Workflow.objects.filter(toolsets__slug=department)}
        assert served <= set(listed) and len(served) == PICKED and set(renamed) <= served
    assert Toolset.objects.count() == 2
    assert keyboard.count <= 210


def test_the_cause_of_26_failures_is_found_and_all_are_run_again_by_keyboard(keyboard):
    make_failures(26)
    window = keyboard.window
    window.open("/admin/")
    keyboard.skip_to_the_content()
    keyboard.tab_to('#content a[href*="/failures/"]')
    keyboard.follow()
    assert "app.errors.Ragged: 3 columns instead of 4" in window.browser.text("#causes > li:only-child")
    keyboard.skip_to_the_content()
    keyboard.tab_to('#causes a[href*="/again/"]')
    keyboard.follow()
    keyboard.skip_to_the_content()
    keyboard.tab_to("#run-again button")
    keyboard.follow()
    assert window.run("return document.querySelectorAll('#result_list tbody tr').length") == 26
    assert Execution.objects.filter(door="admin").count() == 26
    assert keyboard.count <= 30


def test_fifty_changes_of_which_five_are_poisoned_are_decided_by_keyboard(keyboard):
    """45 are accepted and 5 kept, from the overview."""
    make_changes(50)
    window = keyboard.window
    window.open("/admin/")
    keyboard.skip_to_the_content()
    keyboard.tab_to('#inbox a[href*="/catalogue/review/"]')
    keyboard.follow()
    for _ in range(50):
        key = window.browser.wait_for(SHOWN)
        is_flagged = window.run("return !!document.querySelector('#queue-current [data-flag]')")
        keyboard.press("k" if is_flagged else "a", until=f"({SHOWN} ?? '{key}') !== '{key}'")
    window.browser.wait_for("!document.querySelector('#queue-leaving [data-card], .htmx-request')")
    assert Workflow.objects.filter(description__contains=IGNORE).count() == 0
    assert Review.objects.exclude(kept_at=None).count() == 5 == Review.objects.count()
    assert HistoryEntry.objects.count() == 50
    assert keyboard.count <= 60
