"""Approvals: requests, decisions, and approvals for a period."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from audit.models import Entry, Proven, as_text
from catalogue.models import Workflow
from executions.models.notice import Notice


class ApprovalQuerySet(models.QuerySet["Approval"]):
    def waiting(self) -> ApprovalQuerySet:
        return self.filter(state="waiting")

    def decided(self) -> ApprovalQuerySet:
        return self.exclude(state="waiting")

    def of_user(self, user: Any) -> ApprovalQuerySet:
        """Requested by the user's calls, or decided by the user."""
        if user is None:
            return self.none()
        decided = ApprovalDecision.objects.filter(user=user).order_by().values("approval")
        asked = Approval.objects.filter(asked_by=user).order_by().values("pk")
        # Not `or`, for which databases read all rows.
        return self.filter(pk__in=asked.union(decided))


class Approval(Proven):
    """Why an execution needs approval, and the outcome; one row for each such call."""

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting")
        APPROVED = "approved", _("approved")
        REFUSED = "refused", _("refused")
        EXPIRED = "expired", _("expired")
        CANCELLED = "cancelled", _("cancelled by the caller")
        OUTDATED = "outdated", _("the workflow has changed")

    execution = models.OneToOneField(
        "executions.Execution", on_delete=models.CASCADE, primary_key=True, related_name="approval"
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    reason = models.TextField(help_text="Why it needs approval.")
    approvers_needed = models.PositiveSmallIntegerField(default=1)
    binding = models.CharField(
        max_length=64, db_index=True, help_text="SHA-256 of the workflow's content, the input and the caller."
    )
    content = models.CharField(
        max_length=64, help_text="SHA-256 of the workflow's content at the time of the call."
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The user that the caller acts for, if known.",
    )
    requested_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)
    outcome = models.TextField(blank=True, help_text="How it ended, in a sentence.")
    standing = models.ForeignKey(
        "executions.StandingApproval",
        null=True,
        on_delete=models.SET_NULL,
        related_name="used_by",
        help_text="The earlier approval that allowed it to run without a new one.",
    )

    may_change = ("expires_at", "asked_by", "standing")  # The last two if they go
    objects = ApprovalQuerySet.as_manager()

    class Meta:
        ordering = ("-requested_at", "-pk")
        default_permissions = ("view",)
        permissions = [("decide_approval", "Can approve and refuse calls")]
        indexes = [
            models.Index(fields=["-requested_at"], name="approval_by_time"),
            models.Index(fields=["state", "-requested_at"], name="approval_by_state"),
            models.Index(fields=["expires_at"], name="approval_expiring", condition=Q(state="waiting")),
        ]

    def __str__(self) -> str:
        return f"Call of {self.execution.tool_name}"

    @property
    def is_waiting(self) -> bool:
        return self.state == self.State.WAITING

    @property
    def is_unanswered(self) -> bool:
        """It waits, and its caller left without an answer."""
        return self.is_waiting and self.execution.is_unanswered


class ApprovalDecision(Proven):
    """One person's answer."""

    class Verdict(models.TextChoices):
        APPROVE = "approve", _("approved")
        REFUSE = "refuse", _("refused")

    approval = models.ForeignKey(Approval, on_delete=models.CASCADE, related_name="decisions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    user_name = models.CharField(max_length=150)
    verdict = models.CharField(max_length=10, choices=Verdict.choices)
    words = models.TextField(blank=True)
    minutes = models.PositiveIntegerField(
        null=True, help_text="How long identical calls run without a new approval. Empty: this call only."
    )
    at = models.DateTimeField(default=timezone.now)

    may_change = ("user",)  # If it goes

    class Meta:
        ordering = ("at", "pk")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["approval", "user"], name="one_decision_per_person")]

    def __str__(self) -> str:
        return f"{self.user_name} {self.get_verdict_display()}"


class StandingApproval(Proven):
    """Lets the same caller repeat the call with the same content until `until`."""

    binding = models.CharField(max_length=64)
    workflow = models.ForeignKey(Workflow, on_delete=models.CASCADE, related_name="standing_approvals")
    tool_name = models.CharField(max_length=64)
    caller = models.CharField(max_length=100)
    caller_name = models.CharField(max_length=255, blank=True)
    granted_by = models.CharField(max_length=500)
    approvers = models.PositiveSmallIntegerField(db_default=1, help_text="How many people gave it.")
    granted_at = models.DateTimeField(default=timezone.now)
    until = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    revoked_by = models.CharField(max_length=150, blank=True)

    may_change = ("revoked_at", "revoked_by")

    class Meta:
        ordering = ("-granted_at", "-pk")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["binding", "until"], name="standing_by_binding"),
            models.Index(fields=["-granted_at"], name="standing_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} for {self.caller_name or self.caller}"

    @staticmethod
    def valid_now() -> Q:
        return Q(revoked_at=None, until__gt=timezone.now())

    @property
    def mark(self) -> str:
        """The same for a copy."""
        return f"{self.binding} {as_text(self.granted_at)}"

    @property
    def was_revoked(self) -> bool:
        """Returns whether the audit has a revocation, also of the row that this one is a copy of."""
        ours = Q(subject=f"executions.standingapproval:{self.pk}") | Q(details__contains=self.mark)
        return Entry.objects.filter(ours, event="approval.revoked").exists()

    @property
    def is_valid(self) -> bool:
        return self.revoked_at is None and self.until > timezone.now()


class ApprovalNotice(Notice):
    """Written in the transaction that it reports."""

    class Kind(models.TextChoices):
        REQUESTED = "requested", _("approval requested")
        DECIDED = "decided", _("decided")

    class Channel(models.TextChoices):
        EMAIL = "email", _("e-mail")
        WEBHOOK = "webhook", _("webhook")

    approval = models.ForeignKey(Approval, on_delete=models.CASCADE, related_name="notices")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    channel = models.CharField(max_length=10, choices=Channel.choices)

    class Meta:
        ordering = ("pk",)
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                name="approval_notice_due",
                condition=Q(sent_at=None, given_up_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} by {self.get_channel_display()}"

    @property
    def message_id(self) -> str:
        return f"approval-notice-{self.pk}"

    @property
    def logged(self) -> dict[str, Any]:
        return {"execution": self.approval_id}
