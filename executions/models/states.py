from django.db import models


class State(models.TextChoices):
    UNAPPROVED = "unapproved", "waiting for approval"
    PENDING = "pending", "waiting to be started"
    STARTING = "starting", "being started"
    RUNNING = "running", "running"
    COMPLETED = "completed", "completed"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"
    TIMED_OUT = "timed_out", "timed out"
    UNCONFIRMED = "unconfirmed", "unconfirmed"


ACTIVE = (State.PENDING, State.STARTING, State.RUNNING)
OPEN = (State.UNAPPROVED, *ACTIVE)  # No worker, lease or limit is concerned with unapproved ones
FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT)


class CancelProgress(models.TextChoices):
    REQUESTED = "requested", "requested; not sent to the engine yet"
    SENT = "sent", "sent to the engine; not confirmed yet"
    CONFIRMED = "confirmed", "cancelled"
    REFUSED = "refused", "the engine refused"
    TOO_LATE = "too_late", "it ended before it could be cancelled"


class Aftermath(models.TextChoices):
    """What a failure left behind, which decides what may be done next; a line of the timeline."""

    MAY_HAVE_EFFECT = "may_have_effect", "What was asked for may have been done all the same."
    NO_OTHER_ARGUMENTS = "no_other_arguments", "Other arguments would not help."
    NOTHING_DONE = "nothing_done", "The engine was not reached, or wants to be asked later. Nothing was done."


class ErrorKind(models.TextChoices):
    """The five kinds of B5."""

    DISCOVERY = "discovery", "discovery"
    VALIDATION = "validation", "validation"
    EXECUTION = "execution", "execution"
    TIMEOUT = "timeout", "timeout"
    CONFIGURATION = "configuration", "configuration"
