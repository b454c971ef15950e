from celery import shared_task

from audit import sealing

SECONDS = 20.0  # It occupies a thread of the worker


@shared_task(name="audit.seal_audit")
def seal_audit() -> None:
    sealing.seal(seconds=SECONDS)


@shared_task(name="audit.prune_audit")
def prune_audit() -> None:
    sealing.prune(seconds=SECONDS)
