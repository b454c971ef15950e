import hashlib
import json
from datetime import datetime
from typing import Any, ClassVar, Self

from django.conf import settings
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import Count, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from catalogue.fields import JSONTextField, optional_number
from catalogue.models.history import ExposingQuerySet, Reservable
from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials

SOURCE_NAME = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z",
    "A source's name has 1 to 64 letters, digits, underscores, dots or hyphens, and starts with "
    "a letter or digit.",
)
TOLERATED_LOSS = 20  # Percent
OBSERVED = (
    "health_state", "health_message", "health_error", "failing_since", "failures", "last_refreshed_at",
    "next_refresh_at", "refresh_lease_expires_at",
    "webhook_received_at", "webhook_matched_at", "webhook_refused_at", "webhook_refusal",
)  # fmt: skip


class SourceQuerySet(ExposingQuerySet["Source"]):
    def due(self, now: datetime) -> "SourceQuerySet":
        """Enabled sources that are due for a listing and not being listed."""
        free = Q(refresh_lease_expires_at=None) | Q(refresh_lease_expires_at__lt=now)
        return self.filter(free, enabled=True, next_refresh_at__lte=now)

    def with_workflow_counts(self) -> "SourceQuerySet":
        present = Q(workflows__isnull=False, workflows__missing_since=None)
        return self.annotate(
            present_count=Count("workflows", filter=present),
            enabled_count=Count("workflows", filter=present & Q(workflows__enabled=True)),
        )


class Source(Reservable):
    class NewWorkflows(models.TextChoices):
        HIDDEN = "hidden", _("hidden until a curator enables them")
        EXPOSED = "exposed", _("enabled immediately")
        HELD = "held", _("hidden, and listed under changes to review")

    class ChangePolicy(models.TextChoices):
        FOLLOW = "follow", _("served immediately")
        CAREFUL = "careful", _("served if harmless, otherwise held for review")
        HOLD = "hold", _("held for review")

    class HealthState(models.TextChoices):
        UNKNOWN = "unknown", _("not tried yet")
        OK = "ok", _("working")
        FAILING = "failing", _("failing")
        HELD = "held", _("listing held")

    recorded_as_secret: ClassVar[tuple[str, ...]] = ("encrypted_credentials",)

    name = models.CharField(max_length=64, unique=True, validators=[SOURCE_NAME])
    kind = models.CharField(max_length=50)
    config = JSONTextField(
        default=dict, blank=True, help_text=_("The engine's settings, without its secrets.")
    )
    encrypted_credentials = models.TextField(blank=True, editable=False)
    enabled = models.BooleanField(
        default=True, help_text=_("Off: workflows of this source are not discovered, listed or run.")
    )
    new_workflows = models.CharField(
        max_length=10,
        choices=NewWorkflows.choices,
        default=NewWorkflows.HIDDEN,
        help_text=_("What happens to workflows that discovery finds for the first time."),
    )
    change_policy = models.CharField(
        _("changed workflows"),
        max_length=10,
        choices=ChangePolicy.choices,
        default=ChangePolicy.CAREFUL,
        help_text=_(
            "What happens when the engine changes an enabled workflow. While a change is held, the "
            "accepted version is served."
        ),
    )
    vanishing_share_percent = models.PositiveSmallIntegerField(
        _("tolerated loss"),
        default=TOLERATED_LOSS,
        validators=[MaxValueValidator(100)],
        help_text=_(
            "Percent. A listing that loses more of the workflows, and at least five, is held until "
            "an administrator confirms it. An empty listing is always held."
        ),
    )
    refresh_interval = optional_number(
        least=0,
        most=604_800,
        help_text=_("Seconds between two listings; 0: only by hand; empty: the product's default."),
    )
    max_concurrent = optional_number(
        "concurrent runs",
        help_text=_("Maximum for all its workflows; further calls wait in the queue. Empty: no limit."),
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    configured_at = models.DateTimeField(
        default=timezone.now, editable=False, help_text="When its settings or credentials last changed."
    )

    health_state = models.CharField(
        max_length=10, choices=HealthState.choices, default=HealthState.UNKNOWN, editable=False
    )
    health_message = models.TextField(blank=True, editable=False)
    health_error = models.CharField(  # noqa: DJ001
        max_length=20,
        null=True,
        editable=False,
        help_text="The kind of error that ended the last listing: unreachable, rejected and so on.",
    )
    failing_since = models.DateTimeField(null=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False, help_text="Failed listings in a row.")
    last_refreshed_at = models.DateTimeField(
        null=True, editable=False, help_text="The last listing that worked."
    )
    next_refresh_at = models.DateTimeField(default=timezone.now, null=True, editable=False, db_index=True)
    refresh_lease_expires_at = models.DateTimeField(null=True, editable=False)

    webhook_received_at = models.DateTimeField(
        null=True, editable=False, help_text="When its webhook last delivered something genuine, to 10 s."
    )
    webhook_matched_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="When it last reported the end of a run of ours. Empty: never, or it has missed one since.",
    )
    webhook_refused_at = models.DateTimeField(
        null=True, editable=False, help_text="When a delivery was last refused, to 10 s."
    )
    webhook_refusal = models.CharField(  # noqa: DJ001 - as other columns that came later
        max_length=500, null=True, editable=False, help_text="Why it was."
    )

    objects: ClassVar[models.Manager["Source"]] = SourceQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        permissions = (("refresh_source", "Can refresh source"),)

    def __str__(self) -> str:
        return self.name

    @property
    def credentials(self) -> dict[str, str]:
        """Returns them by field name. Raises CredentialsUnreadable after a change of SECRET_KEY."""
        return decrypt_credentials(self.encrypted_credentials)

    @credentials.setter
    def credentials(self, credentials: dict[str, str]) -> None:
        self.encrypted_credentials = encrypt_credentials(credentials)

    @staticmethod
    def is_same_secret(one: str, other: str) -> bool:
        """The same credentials encrypt to different texts."""
        try:
            return one == other or decrypt_credentials(one) == decrypt_credentials(other)
        except CredentialsUnreadable:
            return False

    def settings_values(self) -> list[Any]:
        """Returns the values of all columns but those of its listings and of its webhook."""
        settled = [field for field in self._meta.concrete_fields if field.name not in OBSERVED]
        return [getattr(self, field.attname) for field in settled]

    @property
    def shows_apps(self) -> bool:
        """Returns whether it is an MCP server whose tools' apps clients get."""
        return self.kind == "mcp" and self.config.get("apps") is True

    @property
    def effective_refresh_interval(self) -> int:
        """Seconds between two listings; 0: never automatically."""
        default: int = settings.CATALOGUE.discovery_interval
        return default if self.refresh_interval is None else self.refresh_interval

    @property
    def settings_fingerprint(self) -> str:
        """Changes whenever a new connector is needed."""
        return hashlib.sha256(
            json.dumps([self.kind, self.config, self.encrypted_credentials], sort_keys=True).encode()
        ).hexdigest()


class DiscoveryRunQuerySet(models.QuerySet["DiscoveryRun"]):
    def for_lists(self) -> "DiscoveryRunQuerySet":
        return self.defer("skipped", "flagged", "changes")

    def held(self) -> "DiscoveryRunQuerySet":
        """Held listings that are their source's latest."""
        of_source = DiscoveryRun.objects.filter(source=models.OuterRef("source"))
        newest = of_source.filter(outcome__in=("succeeded", "held")).order_by("-pk").values("pk")[:1]
        return self.filter(outcome="held", pk=models.Subquery(newest))


class DiscoveryRun(models.Model):
    class Trigger(models.TextChoices):
        SCHEDULE = "schedule", _("schedule")
        START = "start", _("start of the product")
        MANUAL = "manual", _("by hand")

    class Outcome(models.TextChoices):
        RUNNING = "running", _("running")
        SUCCEEDED = "succeeded", _("succeeded")
        FAILED = "failed", _("failed")
        HELD = "held", _("held")

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="discovery_runs")
    trigger = models.CharField(max_length=10, choices=Trigger.choices)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default=Outcome.RUNNING)
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    added = models.PositiveIntegerField(default=0)
    updated = models.PositiveIntegerField(default=0)
    unchanged = models.PositiveIntegerField(default=0)
    returned = models.PositiveIntegerField(default=0, help_text=_("Were missing and are back."))
    missing = models.PositiveIntegerField(default=0, help_text=_("Newly gone from the engine's list."))
    held = models.PositiveIntegerField(
        default=0, help_text=_("Changed in a way that awaits review; agents see them as they were accepted.")
    )
    skipped_count = models.PositiveIntegerField(default=0)
    skipped = JSONTextField(
        default=list, help_text="Objects left out: [{position, id, name, reason}], at most 1,000."
    )
    flagged = JSONTextField(
        default=list, help_text="Workflows to look at, and why: [{id, name, reason}], at most 1,000."
    )
    changes = JSONTextField(
        default=dict,
        help_text="The workflows behind the counts: {added: [{workflow, id, name, tool_name}], ...}, at most "
        "1,000 of each. Of listings that are held again and again, the last one has them.",
    )
    vanishing_digest = models.CharField(
        max_length=64, blank=True, help_text="Of a held listing: which workflows exactly it has lost."
    )
    confirmed_at = models.DateTimeField(
        null=True, help_text="When an administrator confirmed that these workflows are gone."
    )
    error = models.TextField(blank=True)

    objects: ClassVar[models.Manager["DiscoveryRun"]] = DiscoveryRunQuerySet.as_manager()

    class Meta:
        ordering = ("-started_at", "-pk")
        indexes = [
            models.Index(fields=["source", "-started_at"]),
            models.Index(fields=["-started_at"], name="listing_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.started_at:%Y-%m-%d %H:%M:%S %Z}"

    @property
    def duration_ms(self) -> int | None:
        if self.finished_at is None:
            return None
        return round((self.finished_at - self.started_at).total_seconds() * 1000)

    @property
    def found(self) -> int:
        return self.added + self.updated + self.unchanged + self.returned + self.held

    def finish(self, *, outcome: "DiscoveryRun.Outcome", error: str = "") -> Self:
        """Write the outcome and all counts once; does nothing if the run is already finished or deleted."""
        self.outcome, self.error, self.finished_at = outcome, error, timezone.now()
        fields = [field.attname for field in self._meta.concrete_fields if not field.primary_key]
        values = {name: getattr(self, name) for name in fields}
        DiscoveryRun.objects.filter(pk=self.pk, outcome=self.Outcome.RUNNING).update(**values)
        return self
