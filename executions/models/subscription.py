"""Subscriptions: who is told of which events, and how."""

from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from catalogue.fields import JSONTextField
from catalogue.models import Recorded, Workflow
from catalogue.secrets import decrypt_credentials, encrypt_credentials
from executions.models.notice import Notice


class EventKind(models.TextChoices):
    LOST = "lost", _("Vanished tools")
    NEW = "new", _("New workflows")
    CHANGED = "changed", _("Changes to review")
    FLAGGED = "flagged", _("Commanding texts and look-alikes")
    SOURCE = "source", _("Failing sources and held listings")
    SPIKE = "spike", _("Sudden failures")
    UNCONFIRMED = "unconfirmed", _("Unconfirmed runs")
    PAUSED = "paused", _("Runs that wait for a person")
    APPROVAL = "approval", _("Calls waiting for approval")
    REPORT = "report", _("Problems that agents report")
    ENDED = "ended", _("Runs that ended")


class Addressed(models.Model):
    class Medium(models.TextChoices):
        EMAIL = "email", _("E-mail to the owner")
        WEBHOOK = "webhook", _("Signed webhook")
        SLACK = "slack", _("Slack")
        TEAMS = "teams", _("Microsoft Teams")

    medium = models.CharField(max_length=10, choices=Medium.choices, default=Medium.EMAIL)
    encrypted_target = models.TextField(blank=True, editable=False)

    class Meta:
        abstract = True

    @property
    def target(self) -> dict[str, str]:
        """The `address` of a webhook, and the `secret` that signs."""
        return decrypt_credentials(self.encrypted_target)

    @target.setter
    def target(self, target: dict[str, str]) -> None:
        self.encrypted_target = encrypt_credentials(target)


class Subscription(Addressed, Recorded):
    """Events are told as far as its owner's permissions allow at the time of sending."""

    class Frequency(models.TextChoices):
        IMMEDIATE = "immediate", _("Immediately")
        DAILY = "daily", _("Once a day")

    names_by_people = ("name",)
    recorded_as_secret = ("encrypted_target",)

    name = models.CharField(max_length=100, help_text=_("Such as the channel."))
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="subscriptions",
        editable=False,
        help_text=_("The messages contain only what this user may see."),
    )
    kinds = JSONTextField(default=list)
    workflows: ClassVar[Any] = models.ManyToManyField(
        Workflow,
        verbose_name=_("only of these workflows"),
        blank=True,
        related_name="+",
        help_text=_("Of runs and approvals; empty: of all workflows."),
    )
    chooses_workflows = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="So that it stays so if they are deleted."
    )
    # Null, so that older code, without this column, can write rows during a rolling upgrade.
    callers = JSONTextField(null=True, blank=True, help_text="Such as token:7; null or empty: all.")
    only_failed = models.BooleanField(
        _("only failures"), default=False, db_default=False, help_text=_("Of the runs that ended.")
    )
    frequency = models.CharField(max_length=10, choices=Frequency.choices, default=Frequency.IMMEDIATE)
    enabled = models.BooleanField(default=True)
    told_until = models.BigIntegerField(
        null=True, editable=False, help_text="Key of the last event that was considered; null at first."
    )
    digest_at = models.DateTimeField(default=timezone.now, editable=False)
    runs_until = models.DateTimeField(
        null=True, editable=False, help_text="Until when runs that ended were considered; null at first."
    )

    class Meta:
        ordering = ("name", "pk")
        default_permissions = ()
        permissions = [("manage_subscription", "Can manage all subscriptions, and use webhooks")]

    def __str__(self) -> str:
        return self.name


class Event(models.Model):
    """A row that a topic of the inbox counts or has counted; reported once."""

    topic = models.CharField(max_length=30)
    subject = models.CharField(max_length=150, help_text="Key and version of the row.")
    name = models.CharField(max_length=300)
    at = models.DateTimeField(null=True)
    found_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    run: Any = None  # Not stored: the execution, of a run that ended

    class Meta:
        ordering = ("pk",)
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["topic", "subject"], name="one_event_per_subject")]

    def __str__(self) -> str:
        return f"{self.topic}: {self.name}"


class EventNotice(Notice):
    subscription = models.ForeignKey(Subscription, on_delete=models.CASCADE, related_name="notices")
    events: ClassVar[Any] = models.ManyToManyField(Event, related_name="+")
    # Of the runs that it reports; null: none.
    runs_after = models.DateTimeField(null=True)
    runs_until = models.DateTimeField(null=True)

    class Meta:
        ordering = ("pk",)
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                name="event_notice_due",
                condition=Q(sent_at=None, given_up_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"Events for {self.subscription}"

    @property
    def logged(self) -> dict[str, Any]:
        return {"subscription": self.subscription_id}


class RunNotice(Addressed, Notice):
    """Where a call wants to be told of its run; written with the record of the call."""

    execution = models.ForeignKey("executions.Execution", on_delete=models.CASCADE, related_name="notices")
    receiver = models.CharField(max_length=255, help_text="The host, or the caller's name; shown.")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    told = models.CharField(max_length=12, blank=True, help_text="The state that was told last.")

    class Meta:
        ordering = ("pk",)
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["execution", "medium"], name="one_notice_per_medium")]
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                name="run_notice_due",
                condition=Q(sent_at=None, given_up_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"Notice of a run to {self.receiver}"

    @property
    def message_id(self) -> str:
        return f"run-notice-{self.pk}-{self.execution.state}"

    @property
    def logged(self) -> dict[str, Any]:
        return {"execution": self.execution_id}

    def claim(self, *, until: datetime) -> None:
        """A message is given up some time after its first attempt: the call may be long past."""
        if not self.attempts:
            self.created_at = timezone.now()
            self.save(update_fields=["created_at"])
        super().claim(until=until)

    def mark_sent(self) -> None:
        """If the run may go on, it waits for the next state to tell."""
        self.told, self.attempts, self.error, self.next_attempt_at = (
            self.execution.state,
            0,
            "",
            timezone.now(),
        )
        if self.execution.is_final:
            self.sent_at, self.encrypted_target = timezone.now(), ""
        self._record("notice_sent", f"Told {self.receiver} by {self.medium}: {self.told}.")

    def give_up(self) -> None:
        self.given_up_at, self.encrypted_target = timezone.now(), ""
        self._record("notice_given_up", f"{self.receiver} was not told by {self.medium}: {self.error}")

    def _record(self, kind: str, message: str) -> None:
        with transaction.atomic():
            self.save()
            self.execution.note(kind, message)
