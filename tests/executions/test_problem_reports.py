"""What agents report that they miss: one row for the same, few rows for all, whatever they write."""

import string
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from access.callers import Caller, person_of
from executions import problem_reports
from executions.models import ProblemReport, Retention
from executions.models.report import MAX_NAME, MAX_TEXT
from executions.problem_reports import KEPT_LAST, MAX_ROWS
from executions.refusals import InvalidArguments, TooManyCalls
from executions.retention import prune
from tests.access.test_rates import clock as clock  # noqa: PLC0414
from tests.factories import make_report, make_source, make_workflow
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.problem_reports"),
]
LONG_AGO = timezone.now() - timedelta(days=400)


def report(missing="refunds", *, tool="pay", tried="To pay back", by=1, **caller):
    caller = Caller(key=f"user:{by}", name=f"agent {by}", **caller)
    problem_reports.report_problem(caller, tool=tool, tried=tried, missing=missing)


def rows(*columns):
    return list(ProblemReport.objects.order_by("pk").values_list(*columns))


@pytest.fixture
def pay(db):
    return make_workflow(name="pay")


@pytest.fixture
def without_rate(monkeypatch):
    monkeypatch.setattr(problem_reports, "seconds_until_free", lambda rate: 0)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({}, {}, True),
        ({}, {"by": 2, "tried": "Something else"}, True),
        ({"missing": "No refunds!"}, {"missing": " no\nrefunds"}, True),
        ({"missing": "refunds"}, {"missing": "receipts"}, False),
        ({"tool": "pay"}, {"tool": "ship"}, False),
        ({"tool": "pay"}, {"tool": ""}, False),
        ({"tool": "ship"}, {"tool": "Ship"}, False),
        ({"missing": "?"}, {"missing": "!"}, False),
        ({"tool": "a", "missing": "b c"}, {"tool": "a b", "missing": "c"}, False),
    ],
)
def test_the_same_words_about_the_same_tool_are_one_row(pay, first, second, is_same):
    report(**first)
    report(**second)
    assert [times for (times,) in rows("times")] == ([2] if is_same else [1, 1])


def test_a_row_keeps_the_latest_reports_and_counts_all(pay):
    for number in range(KEPT_LAST + 2):
        report(tried=f"attempt {number}", by=number)
    (row,) = ProblemReport.objects.all()
    assert row.times == KEPT_LAST + 2
    assert [one["tried"] for one in row.last] == [f"attempt {number}" for number in (6, 5, 4, 3, 2)]
    assert row.last[0]["caller"] == "agent 6" and row.first_at < row.last_at


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a" * 4_000_000, "a" * (MAX_TEXT - 3) + "..."),
        ("a" * MAX_TEXT, "a" * MAX_TEXT),
        ("\x00a\x1b[31m\u202eb\ud800", "a [31m b"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_texts_are_bounded_and_without_control_characters(pay, text, kept):
    report(text, tried=text, tool=text)
    (row,) = ProblemReport.objects.all()
    assert (row.missing, row.last[0]["tried"]) == (kept, kept)
    assert len(row.tool) <= MAX_NAME


@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_is_recorded_or_refused(tool, tried, missing, name):
    caller = Caller(key="user:1", name=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem_reports, "seconds_until_free", lambda rate: 0)
        try:
            problem_reports.report_problem(caller, tool=tool, tried=tried, missing=missing)
        except InvalidArguments:
            assert not any(char.isprintable() and not char.isspace() for char in missing)


@pytest.mark.parametrize("missing", ["", " \n", "\x00\u200e"])
def test_a_report_of_nothing_is_refused(pay, missing):
    with pytest.raises(InvalidArguments):
        report(missing)
    assert rows("pk") == []


def test_a_caller_reports_a_few_at_once_and_all_its_tokens_count_together(pay, clock):
    for number in range(10):
        report(user_id=7, by=number)
    with pytest.raises(TooManyCalls) as refused:
        report(user_id=7, by=99)
    assert refused.value.retry_after > 0
    report(user_id=8)
    clock.now += 30.001
    report(user_id=7, by=99)
    assert rows("times") == [(12,)]


def test_a_tool_that_the_caller_does_not_see_is_a_text_and_no_tool(pay):
    make_workflow(name="hidden", enabled=False)
    eve = User.objects.create(username="eve")
    make_workflow(make_source(reserved_for=["user:eve"]), name="reserved")
    for tool in ("pay", "hidden", "reserved", "invented", "list_workflows"):
        report(tool=tool, person=frozenset({"user:0"}))
    report(tool="reserved", person=person_of(eve))
    assert rows("tool", "is_tool") == [
        ("pay", True), ("hidden", False), ("reserved", False), ("invented", False),
        ("list_workflows", False), ("reserved", True),
    ]  # fmt: skip


def test_what_was_resolved_comes_again_if_it_is_reported_anew(pay):
    report()
    report()
    ProblemReport.objects.update(resolved_at=timezone.now())
    (first_at,) = rows("first_at")[0]
    report()
    assert rows("times", "resolved_at") == [(1, None)]
    assert rows("first_at")[0][0] > first_at


@pytest.mark.parametrize("tool", ["pay", "unknown"])
def test_a_flood_of_different_reports_pushes_out_only_its_own_kind(pay, monkeypatch, without_rate, tool):
    monkeypatch.setattr(problem_reports, "MAX_OF_TOOL", 4)
    monkeypatch.setattr(problem_reports, "MAX_OF_OTHERS", 4)
    others = [make_report(tool="ship", is_tool=True, last_at=LONG_AGO)]
    others += [make_report(tool="" if tool == "pay" else "pay", is_tool=tool != "pay", last_at=LONG_AGO)]
    for letter in string.ascii_letters:
        report(letter, tool=tool)
    left = ProblemReport.objects.exclude(pk__in=[one.pk for one in others])
    assert {one.missing for one in left} == {"W", "X", "Y", "Z"}
    assert ProblemReport.objects.count() == len(others) + 4


def test_resolved_reports_go_first_then_those_not_reported_for_longest(pay, monkeypatch, without_rate):
    monkeypatch.setattr(problem_reports, "MAX_OF_TOOL", 3)
    for missing in "abc":
        report(missing)
    report("a")
    ProblemReport.objects.filter(missing="c").update(resolved_at=timezone.now())
    report("d")
    assert rows("missing") == [("a",), ("b",), ("d",)]
    report("e")
    assert rows("missing") == [("a",), ("d",), ("e",)]


def test_more_rows_than_the_limit_shrink_to_it(pay):
    """Such as of a release with a higher limit."""
    times = {"first_at": LONG_AGO, "last_at": LONG_AGO}
    ProblemReport.objects.bulk_create(
        ProblemReport(key=f"{number:x}", tool=f"tool_{number}", is_tool=True, missing="x", **times)
        for number in range(MAX_ROWS * 5 // 2)
    )
    report("a")
    report("b")
    assert ProblemReport.objects.count() == MAX_ROWS
    assert ProblemReport.objects.filter(tool="pay").count() == 2


def test_reports_are_kept_as_long_as_records(pay):
    Retention.objects.update_or_create(pk=Retention.ONLY, defaults={"keep_records_days": 365})
    report()
    make_report(last_at=LONG_AGO)
    assert prune().others == {"problem reports": 1}
    assert rows("tool") == [("pay",)]


def test_of_first_reports_at_the_same_moment_each_is_counted_in_one_row(pay):
    together(*[lambda by=by: report(by=by) for by in range(6)])
    assert rows("times") == [(6,)]


def test_different_reports_at_the_same_moment_neither_wait_for_ever_nor_exceed_the_limit(pay, monkeypatch):
    monkeypatch.setattr(problem_reports, "MAX_OF_TOOL", 3)
    for number in range(3):
        report(f"before {number}")
    together(*[lambda by=by: report(f"now {by}", by=by) for by in range(6)])
    report("last", by=9)
    assert len(rows("pk")) == 3
