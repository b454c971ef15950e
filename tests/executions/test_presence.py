"""Which process does the work that is due: the workers, or one that stands in for them."""

from datetime import timedelta
from functools import partial

import pytest
from django.db.models import F

from executions.local_worker import SILENCE, note_worker, stand_in
from executions.models import WorkerPresence
from executions.tasks import poll_due_executions
from tests.threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.databases("executions.local_worker")]


def let_pass(time: timedelta) -> None:
    WorkerPresence.objects.update(seen_at=F("seen_at") - time)


def test_one_process_stands_in_where_there_never_was_a_worker():
    """E8: and goes on as long as it says so."""
    assert stand_in("a") and not stand_in("b")
    let_pass(SILENCE / 2)
    assert stand_in("a") and not stand_in("b")


def test_nobody_stands_in_for_a_worker_that_lives_or_has_been_silent_for_a_moment():
    """B8: ticks come late on a busy machine."""
    note_worker()
    assert not stand_in("a")
    let_pass(SILENCE / 2)
    assert not stand_in("a")
    let_pass(SILENCE)
    assert stand_in("a")


def test_a_worker_that_comes_back_takes_over_at_once():
    """E8."""
    assert stand_in("a")
    note_worker()
    assert not stand_in("a")


def test_a_process_that_was_killed_or_stopped_is_followed_by_another_one():
    """B8: and if it goes on after all, it finds that out before it does anything."""
    assert stand_in("a")
    let_pass(SILENCE + timedelta(seconds=1))
    assert stand_in("b") and not stand_in("a")


@pytest.mark.parametrize("silent", [False, True], ids=["the first", "after a silence"])
def test_of_processes_that_ask_at_the_same_time_one_stands_in(silent):
    """B8."""
    if silent:
        note_worker()
        let_pass(SILENCE * 2)
    said = together(*(partial(stand_in, str(number)) for number in range(4)))
    assert sorted(said) == [False, False, False, True]


def test_a_workers_tick_says_that_it_lives(monkeypatch):
    """E8."""
    monkeypatch.setattr("executions.tasks._note_worker", note_worker)
    poll_due_executions()
    assert WorkerPresence.objects.get().process == ""
