"""A worker's work within another process, where no worker is alive."""

import pytest

from catalogue.models import DiscoveryRun
from executions.local_worker import LocalWorker, note_worker, stand_in
from executions.models import State, WorkerPresence
from executions.wakeups import stands_in_for_workers
from tests.connectors.scripted import replies
from tests.executions.engines import completed, wait_until
from tests.executions.steps import make_active, read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.databases("executions.local_worker")]


def test_it_lists_at_its_start_follows_what_is_due_and_leaves_nothing_behind(engine, workflow):
    """A1.1, A7.1, E8."""
    engine.on_status = replies(200, completed({"sum": 3}))
    execution = make_active(workflow, State.RUNNING)
    worker = LocalWorker()
    worker.begin()
    try:
        assert stands_in_for_workers()
        wait_until(lambda: read(execution).succeeded, "the run is followed")
        wait_until(lambda: DiscoveryRun.objects.exclude(outcome="running"), "the source is listed")
    finally:
        worker.end()
    assert DiscoveryRun.objects.get().trigger == DiscoveryRun.Trigger.START
    assert not stands_in_for_workers() and not WorkerPresence.objects.exists()


@pytest.mark.parametrize("is_followed", [False, True], ids=["alone", "followed"])
def test_it_leaves_its_place_at_its_end_but_not_that_of_a_process_that_has_followed_it(is_followed):
    """E8."""
    worker = LocalWorker()
    worker.begin()
    assert not stand_in("another")
    if is_followed:
        WorkerPresence.objects.update(process="another")
    worker.end()
    assert WorkerPresence.objects.filter(process="another").exists() == is_followed
    assert stand_in("a third one") != is_followed


def test_where_a_worker_lives_it_does_nothing(engine, workflow):
    """E8."""
    note_worker()
    execution = make_active(workflow, State.RUNNING)
    worker = LocalWorker()
    worker.begin()
    worker.end()
    assert engine.requests == [] and read(execution).polled_at == execution.polled_at
    assert WorkerPresence.objects.get().process == ""
