"""The audit in a real browser: each control of its list and page does what it says."""

import pytest

from audit.models import Entry, Kind, record
from audit.sealing import seal
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.executions.engines import wait_until
from tests.factories import make_execution, make_workflow

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]
ROWS = "return document.querySelectorAll('#result_list tbody tr').length"


def test_an_entry_is_searched_for_opened_and_followed_to_who_did_it_and_what(window):
    """16.6"""
    record(Kind.SIGN_IN, "sign_in.failed", outcome="failed", subject_name="ada", address="10.0.0.1")
    record(Kind.SIGN_IN, "sign_in.succeeded", outcome="succeeded", actor="user:7", actor_name="ada")
    execution = make_execution(make_workflow(name="report"), caller="token:7", caller_name="agent")
    seal()

    window.open("/admin/audit/entry/?q=10.0.0.1")
    assert window.run(ROWS) == 1
    window.click_through("#result_list tbody a")
    assert "sign in: failed" in window.run("return document.body.innerText.toLowerCase()")

    window.open(f"/admin/audit/entry/{Entry.objects.get(actor='user:7').pk}/change/")
    window.click_through("a[href*='actor__exact=user']")
    assert window.run(ROWS) == 1
    assert execution.pk


def test_the_button_writes_the_whole_audit_into_a_file(window):
    record(Kind.SIGN_IN, "sign_in.failed")
    window.open("/admin/audit/entry/")
    window.click("a[href$='/audit/entry/export/']")
    wait_until(lambda: Entry.objects.filter(event="audit.exported").exists(), "the export is entered")
