"""Every page of the admin in a real browser: its title, its scripts, its width and whom it shuts out."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.urls import reverse

import config.urls  # noqa: F401 - it registers the pages
from catalogue.admin.workflow_page import TABS
from catalogue.models import Review, Source, Workflow
from executions.failures import FailureFilter, find_failures
from executions.models import Execution
from executions.statistics import Period
from tests.admin.pages import page_url
from tests.admin.test_answering import form_of, pause
from tests.admin.window import LITTLE, Window, in_parts, make_everything, make_http_tool
from tests.e2e.webdriver import BROWSER, DRIVER, ENTER, MISSING, TAB
from tests.factories import make_workflow
from tests.processes import ROOT

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]

AXE = ROOT / "tests" / "admin" / "axe"
KEPT = os.environ.get("PICTURES", "")
PICTURES = ROOT / ".cache" / "pictures"
"""Kept of each page where the environment variable PICTURES is 1, or a part of the page's name: then no other
is looked at."""
WIDE, NARROW = 1280, 390
CLASSES = "document.documentElement.classList"
"""With `dark` in those colours. One page is loaded so; to load each again would cost as much as another."""
GRAVE = ("critical", "serious")
OF_COLOURS = "color-contrast"
"""The one rule of axe that the same page in other colours can break."""
MARKUP = re.compile(r"</?(?:time|span|div|p|a|code)\b[^>]*>")
"""As text: it was escaped once too often."""
OF_OTHERS = ".help-tooltip", ".select2-selection__rendered"
"""Left out: parts of Django's and Select2's own widgets."""


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of the accessibility rules."""
    install = [sys.executable, "dev/scripts/install_node.py", str(AXE.relative_to(ROOT))]
    outcome = subprocess.run(install, cwd=ROOT, capture_output=True, text=True, check=False)
    if outcome.returncode:
        pytest.skip(f"{outcome.stdout}{outcome.stderr}".strip())
    return (AXE / "node_modules" / "axe-core" / "axe.min.js").read_text()


def pages() -> list[str]:
    """Their names: those that every model has, and our own."""
    names = []
    for model, its in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        names += [f"{name}_changelist", f"{name}_change", f"{name}_history"]
        names += [f"{name}_add"] if its.has_add_permission(_superuser_request()) else []
        names += [f"{name}_delete"] if its.has_delete_permission(_superuser_request()) else []
    return [name for name in (*names, *OWN) if KEPT in ("", "1") or KEPT in name]


OWN = (
    "index", "password_change", "auth_user_password_change",
    "catalogue_workflow_add_tool", "catalogue_workflow_tool",
    "catalogue_source_import_temporal", "catalogue_source_import_openapi",
    "catalogue_productsettings_as_code", "catalogue_review_accept", "executions_engine_runs",
    "executions_run", "executions_usage", "executions_failures", "executions_again",
    "executions_execution_answer",
    "orchestration_workflowrequest_try_it", "mcp_bridge_accesstoken_rotate", "mcp_bridge_accesstoken_reach",
)  # fmt: skip
"""Besides those that every model has."""
WITHOUT_KEY = {
    "index", "password_change", "catalogue_workflow_add_tool", "catalogue_source_import_temporal",
    "catalogue_source_import_openapi", "catalogue_productsettings_as_code", "catalogue_review_accept",
    "executions_usage", "executions_failures", "orchestration_workflowrequest_try_it",
    "mcp_bridge_accesstoken_reach",
}  # fmt: skip


def _superuser_request() -> Any:
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True, is_staff=True)
    return request


def address_of(name: str) -> str:
    app, model, kind = _parts_of(name)
    if name in WITHOUT_KEY or kind in ("changelist", "add"):
        return reverse(f"admin:{name}") + ("?kind=simplified" if name == "catalogue_source_add" else "")
    if name == "executions_again":
        causes = find_failures(FailureFilter(period=Period.MONTH)).causes
        return reverse(f"admin:{name}") + f"?period={Period.MONTH}&cause={causes[0].key}"
    if name == "executions_execution_answer":
        return form_of(Execution.objects.paused().first() or pause())
    if name == "catalogue_workflow_tool":
        return reverse(f"admin:{name}", args=[Workflow.objects.get(tool_name="get_order").pk])
    if name == "executions_engine_runs":
        return reverse(f"admin:{name}", args=[Source.objects.get(name="good").pk])
    if name == "executions_run":
        return reverse(f"admin:{name}", args=[Workflow.objects.get(tool_name="get_order").pk])
    # The first account is the last owner, and the first groups are those of roles: they stay.
    order = "-pk" if app == "auth" and kind == "delete" else "pk"
    key = apps.get_model(app, model)._default_manager.order_by(order).values_list("pk", flat=True)[0]
    return reverse(f"admin:{name}", args=[key])


def _parts_of(name: str) -> tuple[str, str, str]:
    """`mcp_bridge_accesstoken_change` in its three parts."""
    app = next((one.label for one in apps.get_app_configs() if name.startswith(f"{one.label}_")), "")
    model, _, kind = name.removeprefix(f"{app}_").partition("_")
    return app, model, kind


@pytest.mark.parametrize("names", in_parts(pages(), 5))
def test_every_page_has_a_title_fits_its_window_and_can_be_used_without_sight(window, axe, names, subtests):
    """B8: no script fails, nothing is missing, nothing overflows, every control has a name."""
    make_everything(User.objects.get())
    make_http_tool()
    for name in names:
        with subtests.test(name):
            look_at(window, axe, name)


def look_at(window: Window, axe: str, name: str) -> None:
    window.browser.resize(WIDE)
    window.browser.prefer("light")
    window.browser.complaints()
    window.open(address_of(name))
    title = window.run("return document.title.split('|')[0].trim()")
    assert len(title) > 2, title
    problems = []
    for colours in ("light", "dark"):
        if colours == "dark":
            window.browser.prefer(colours)
            if name == "index" or KEPT:
                window.browser.reload()
                window.settle()
                assert window.run(f"return {CLASSES}.contains('dark')"), "it follows the operating system"
            window.run(f"{CLASSES}.add('dark')")
        problems += axe_problems(window, axe, *([OF_COLOURS] if colours == "dark" else []))
        # Other colours make nothing wider.
        for width in (NARROW, WIDE) if colours == "light" or KEPT else ():
            window.browser.resize(width)
            assert not (too_wide := overflowing(window)), too_wide
            if KEPT:
                PICTURES.mkdir(parents=True, exist_ok=True)
                (PICTURES / f"{name}-{width}-{colours}.png").write_bytes(window.browser.picture())
    assert not (markup := MARKUP.findall(window.browser.text())), markup
    assert window.browser.complaints() == []
    assert not problems, "\n".join(problems)


def test_every_tab_of_a_workflow_can_be_used_without_sight_and_fits(window, axe):
    make_everything(User.objects.get())
    address, problems = page_url(Workflow.objects.get(name="plain")), []
    for tab in TABS:
        window.browser.resize(NARROW)
        window.open(LITTLE)
        window.open(f"{address}#{tab}")
        problems += [f"{tab}: {one}" for one in axe_problems(window, axe)]
        assert not (too_wide := overflowing(window)), too_wide
    assert not problems, "\n".join(problems)


IS_BEHIND_THE_BAR = """
const one = document.activeElement, {left, top} = one.getBoundingClientRect();
const there = document.elementFromPoint(left + 10, top + 10);
return !(there && (there === one || one.contains(there)));
"""


def test_what_the_keyboard_comes_to_is_not_behind_the_bar_of_buttons(window):
    """B8: the bar stays below the form while that is scrolled."""
    workflow = make_workflow()
    window.browser.resize(1280, 700)
    window.open(f"{page_url(workflow)}#text")
    window.run("document.querySelector('#id_tool_name').focus()")
    hidden = []
    while (name := window.run("return document.activeElement.name")) != "offered_as_prompt":
        if window.run(IS_BEHIND_THE_BAR):
            hidden.append(name)
        window.browser.press(TAB)
    assert not hidden


def test_a_refused_form_leads_the_keyboard_to_each_field_that_is_wrong(window):
    """B8: forms are several screens long, and the page began above the first of them; also to another tab."""
    workflow = make_workflow()
    window.browser.resize(1280, 700)
    window.open(page_url(workflow))
    window.run("document.querySelector('#id_tool_name').value = 'two words'")
    window.run("document.querySelector('#id_approval_rules').value = 'nonsense'")
    window.click_through("[name=_continue]")
    window.browser.wait_for("document.activeElement.getAttribute('role') === 'alert'")
    window.browser.press(TAB, TAB)
    assert window.run("return document.activeElement.innerText") == "Or depending on arguments"
    window.browser.press(ENTER)
    window.browser.wait_for("document.activeElement.id === 'id_approval_rules'")
    assert window.run("return document.activeElement.getBoundingClientRect().top < innerHeight")


def test_the_badge_of_a_harmless_change_stands_beside_its_words(window):
    """A5.2."""
    make_everything(User.objects.get())
    window.open(page_url(Review.objects.get(kind="changed", kept_at=None)))
    apart = """
    const badge = [...document.querySelectorAll("#main h3 + span")].find(one => one.innerText === "HARMLESS");
    const middle = one => { const {top, bottom} = one.getBoundingClientRect(); return (top + bottom) / 2 };
    return Math.abs(middle(badge) - middle(badge.previousElementSibling));
    """
    assert window.run(apart) <= 1


def overflowing(window: Window) -> list[str]:
    """What makes the page wider than its window."""
    found = window.run(
        """
        const width = document.documentElement.clientWidth;
        if (document.documentElement.scrollWidth <= width) return [];
        return [...(document.querySelector('#main') ?? document.body).querySelectorAll('*')]
          .filter(one => one.getBoundingClientRect().right > width + 1)
          .map(one => `${one.tagName} ${one.className}`.slice(0, 100)).slice(0, 5);
        """
    )
    return list(found)


def axe_problems(window: Window, axe: str, *rules: str) -> list[str]:
    """By these rules of axe, or by all."""
    if window.run("return !window.axe"):
        window.run(axe)
    return list(
        window.browser.run_async(
            f"""
            const done = arguments[arguments.length - 1];
            const tell = node => [node.html.slice(0, 160), ...node.any.map(check => check.message)].join(' ');
            axe.run({{include: document, exclude: {[[one] for one in OF_OTHERS]!r}}}, {{
              resultTypes: ['violations'],
              {f"runOnly: {list(rules)!r}," if rules else ""}
            }}).then(found => done(
              found.violations.filter(one => {list(GRAVE)!r}.includes(one.impact)).map(
                one => `${{one.id}}: ${{one.nodes.map(tell).join(' ; ')}}`)
            ));
            """
        )
    )
