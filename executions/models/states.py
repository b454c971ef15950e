"""The states of an execution, and the kinds of its errors."""

from django.db import models


class State(models.TextChoices):
    PENDING = "pending", "waiting to be started"
    STARTING = "starting", "being started"
    RUNNING = "running", "running"
    COMPLETED = "completed", "completed"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"
    TIMED_OUT = "timed_out", "timed out"
    UNCONFIRMED = "unconfirmed", "unconfirmed"


ACTIVE = (State.PENDING, State.STARTING, State.RUNNING)
FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT)


class ErrorKind(models.TextChoices):
    """The five kinds of B5."""

    DISCOVERY = "discovery", "discovery"
    VALIDATION = "validation", "validation"
    EXECUTION = "execution", "execution"
    TIMEOUT = "timeout", "timeout"
    CONFIGURATION = "configuration", "configuration"
