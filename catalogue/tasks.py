from typing import Any

from celery import shared_task
from celery.signals import worker_ready

from catalogue.discovery import RefreshRefused, due_sources, refresh_source, sources_to_list_at_start
from catalogue.models import DiscoveryRun, Source

MESSAGE_LIFETIME_SECONDS = 60


@shared_task(name="catalogue.refresh_due_sources")
def refresh_due_sources() -> None:
    """One task per due source, so that a slow engine delays no other."""
    _enqueue(due_sources(), DiscoveryRun.Trigger.SCHEDULE)


@shared_task(name="catalogue.refresh_source")
def refresh_one_source(source_id: int, trigger: str) -> None:
    source = Source.objects.filter(pk=source_id).first()
    # While no worker ran, each tick left a message.
    is_late = trigger == DiscoveryRun.Trigger.SCHEDULE and source_id not in due_sources()
    if source is None or is_late:
        return
    try:
        refresh_source(source, trigger=DiscoveryRun.Trigger(trigger))
    except RefreshRefused:
        # Another worker took the message of the tick before.
        return


@worker_ready.connect
def refresh_sources_at_start(**_: Any) -> None:
    """List every engine when the product starts, without delaying the start (A1.1, B6)."""
    _enqueue(sources_to_list_at_start(), DiscoveryRun.Trigger.START)


def _enqueue(source_ids: list[int], trigger: DiscoveryRun.Trigger) -> None:
    for source_id in source_ids:
        refresh_one_source.apply_async((source_id, trigger.value), expires=MESSAGE_LIFETIME_SECONDS)
