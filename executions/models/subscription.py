"""Subscriptions: who is told of which events, and how."""

from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from catalogue.fields import JSONTextField
from catalogue.models import Recorded
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


class Subscription(Recorded):
    """Events are told as far as its owner's permissions allow at the time of sending."""

    class Medium(models.TextChoices):
        EMAIL = "email", _("E-mail to the owner")
        WEBHOOK = "webhook", _("Signed webhook")
        SLACK = "slack", _("Slack")
        TEAMS = "teams", _("Microsoft Teams")

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
    medium = models.CharField(max_length=10, choices=Medium.choices, default=Medium.EMAIL)
    encrypted_target = models.TextField(blank=True, editable=False)
    frequency = models.CharField(max_length=10, choices=Frequency.choices, default=Frequency.IMMEDIATE)
    enabled = models.BooleanField(default=True)
    told_until = models.BigIntegerField(
        null=True, editable=False, help_text="Key of the last event that was considered; null at first."
    )
    digest_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("name", "pk")
        default_permissions = ()
        permissions = [("manage_subscription", "Can manage all subscriptions, and use webhooks")]

    def __str__(self) -> str:
        return self.name

    @property
    def target(self) -> dict[str, str]:
        """The `address` of a webhook, and the `secret` that signs."""
        return decrypt_credentials(self.encrypted_target)

    @target.setter
    def target(self, target: dict[str, str]) -> None:
        self.encrypted_target = encrypt_credentials(target)


class Event(models.Model):
    """A row that a topic of the inbox counts or has counted; reported once."""

    topic = models.CharField(max_length=30)
    subject = models.CharField(max_length=150, help_text="Key and version of the row.")
    name = models.CharField(max_length=300)
    at = models.DateTimeField(null=True)
    found_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("pk",)
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["topic", "subject"], name="one_event_per_subject")]

    def __str__(self) -> str:
        return f"{self.topic}: {self.name}"


class EventNotice(Notice):
    subscription = models.ForeignKey(Subscription, on_delete=models.CASCADE, related_name="notices")
    events: ClassVar[Any] = models.ManyToManyField(Event, related_name="+")

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
