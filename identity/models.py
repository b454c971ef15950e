"""The tables keep the app `mcp_bridge`, in which they were made: docs/decisions/0026-rooms.md."""

from datetime import timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.db.models.signals import pre_delete
from django.dispatch import receiver
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from access.callers import Caller, Scope, person_of, rate_of
from access.permissions import scopes_of
from catalogue.fields import JSONTextField, optional_number
from catalogue.models import Recorded, Toolset
from catalogue.models.toolset import MAX_INLINE_WAIT
from catalogue.models.workflow import MAX_CALLS

SOON = timedelta(days=7)  # How long before its end a token is flagged
DEFAULT_SCOPES = (Scope.READ, Scope.RUN)


def default_scopes() -> list[str]:
    return [scope.value for scope in DEFAULT_SCOPES]


class AccessTokenQuerySet(models.QuerySet["AccessToken"]):
    def unexpired(self) -> "AccessTokenQuerySet":
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)

    def usable(self) -> "AccessTokenQuerySet":
        return self.unexpired().filter(Q(owner=None) | Q(owner__is_active=True))

    def stopped(self) -> "AccessTokenQuerySet":
        """Returns those that only the disabled owner makes unusable."""
        return self.unexpired().filter(owner__is_active=False)

    def expiring(self) -> "AccessTokenQuerySet":
        """Usable ones that end soon."""
        return self.usable().filter(expires_at__lte=timezone.now() + SOON)


def end_with_owner(collector: Any, field: Any, tokens: Any, using: str) -> None:
    """Serves as `on_delete`: the tokens of a deleted user are revoked, and stay for the record."""
    # In this order: the first finds the tokens by their owner.
    revoked_at = AccessToken._meta.get_field("revoked_at")
    collector.add_field_update(revoked_at, timezone.now(), tokens.filter(revoked_at=None))
    collector.add_field_update(field, None, tokens)


end_with_owner.lazy_sub_objs = True  # type: ignore[attr-defined]  # A queryset instead of rows


class AccessToken(Recorded):
    """A bearer token; only its hash is stored, and the token is shown once."""

    recorded_besides: ClassVar[tuple[str, ...]] = ("revoked_at", "rotated_at", "former_ends_at")
    names_by_people: ClassVar[tuple[str, ...]] = ("name",)

    name = models.CharField(max_length=100, unique=True)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    prefix = models.CharField(
        max_length=12, editable=False, help_text="The first characters of the token, to recognise it."
    )
    purpose = models.CharField(
        max_length=500, blank=True, help_text=_("What the token is for and where it is stored.")
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=end_with_owner,
        related_name="access_tokens",
        help_text=_(
            "The token stops working when this user is disabled. If empty, it belongs to the installation."
        ),
    )
    scopes = JSONTextField(default=default_scopes)
    toolset = models.ForeignKey(
        Toolset,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="tokens",
        help_text=_("The only workflows that the token sees and runs. If empty, all exposed workflows."),
    )
    inline_wait_seconds = optional_number(
        "inline wait",
        most=MAX_INLINE_WAIT,
        help_text=_(
            "Seconds that a tool call waits before it returns a handle. Choose less than the client's "
            "own timeout. If empty, the toolset's value applies, or else the product's default."
        ),
    )
    calls_per_minute = optional_number(
        most=MAX_CALLS,
        help_text=_(
            "Workflow calls per minute by all its clients together. If empty, only the limits for "
            "every caller apply."
        ),
    )
    calls_at_once = optional_number(
        most=MAX_CALLS,
        help_text=_("Calls that may follow each other without a pause. If empty, ten seconds' worth."),
    )
    rotated_at = models.DateTimeField(null=True, editable=False)
    former_digest = models.CharField(max_length=64, unique=True, null=True, editable=False)  # noqa: DJ001
    former_prefix = models.CharField(max_length=12, blank=True, editable=False)
    former_ends_at = models.DateTimeField(null=True, editable=False)
    former_used_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, editable=False, help_text="To the minute.")
    last_uses = JSONTextField(
        default=list,
        editable=False,
        help_text="Where it was used from, most recent first: [{address, client, at}].",
    )
    end_logged_at = models.DateTimeField(null=True, editable=False)  # When its imminent end was logged

    objects: ClassVar[models.Manager["AccessToken"]] = AccessTokenQuerySet.as_manager()

    class Meta:
        app_label = "mcp_bridge"
        ordering = ("name",)
        permissions = (
            ("keep_accesstoken", "Can make access tokens that never expire"),
            ("assign_accesstoken", "Can make access tokens for other users"),
        )

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.calls_at_once is not None and self.calls_per_minute is None:
            raise ValidationError({"calls_at_once": "This has no effect without calls per minute."})
        unbounded = [scope for scope in (Scope.ADMIN, Scope.VIEW) if scope in self.scopes]
        if self.toolset is not None and unbounded:
            changes = " and changes" if Scope.ADMIN in unbounded else ""
            everything = f"A token with the scope {unbounded[0].value} sees{changes} everything"
            raise ValidationError(
                {
                    "toolset": f"{everything}, so it cannot be bound to a toolset. "
                    "Leave out the scope or the toolset."
                }
            )

    @property
    def rights_of(self) -> Any:
        """The user whose rights limit the token; None: an operator created it with a command."""
        return self.owner or self.created_by

    @property
    def caller_key(self) -> str:
        return f"token:{self.pk}"

    @property
    def caller(self) -> Caller:
        """Queries the groups of its user unless they are prefetched."""
        return self.caller_granted(self.granted)

    def caller_granted(self, granted: frozenset[str]) -> Caller:
        """`caller`, where what is `granted` to it is known."""
        rate, key, user = None, self.caller_key, self.owner or self.created_by
        if self.calls_per_minute:
            rate = rate_of(key, self.calls_per_minute, self.calls_at_once, whose=f"the token {self.name}")
        return Caller(
            key=key,
            name=self.name,
            sees_everything=Scope.ADMIN in granted,
            toolset=None if self.toolset is None else self.toolset.slug,
            person=None if user is None else person_of(user),
            user_id=None if user is None else user.pk,
            rates=() if rate is None else (rate,),
        )

    @property
    def granted(self) -> frozenset[str]:
        """Includes implied scopes (`catalogue:admin` allows everything), but only what its user may do.
        Queries the user's permissions once."""
        granted = frozenset(Scope.values if Scope.ADMIN in self.scopes else self.scopes)
        user = self.owner or self.created_by
        return granted if user is None else granted & scopes_of(user)

    @property
    def state(self) -> "TokenState":
        if self.revoked_at is not None:
            return TokenState.REVOKED
        if self.expires_at is not None and self.expires_at <= timezone.now():
            return TokenState.EXPIRED
        if self.owner is not None and not self.owner.is_active:
            return TokenState.STOPPED
        return TokenState.USABLE

    @property
    def ends_soon(self) -> bool:
        is_near = self.expires_at is not None and self.expires_at <= timezone.now() + SOON
        return is_near and self.state is TokenState.USABLE

    @property
    def has_former_secret(self) -> bool:
        """Returns whether the secret from before a rotation is still valid."""
        return self.former_ends_at is not None and self.former_ends_at > timezone.now()

    def revoke(self) -> None:
        self.revoked_at = timezone.now()
        self.save(update_fields=["revoked_at"])


@receiver(pre_delete, sender=settings.AUTH_USER_MODEL)
def _revoke_tokens_of(instance: Any, **_: Any) -> None:
    """Revokes ownerless tokens of the user, without whom no rights would limit them."""
    ownerless = AccessToken.objects.filter(created_by=instance, owner=None, revoked_at=None)
    ownerless.update(revoked_at=timezone.now())


class TokenState(models.TextChoices):
    USABLE = "usable", _("usable")
    STOPPED = "owner disabled", _("owner disabled")
    EXPIRED = "expired", _("expired")
    REVOKED = "revoked", _("revoked")


class FailureCount(models.Model):
    """Failed attempts of one caller within one window."""

    key = models.CharField(max_length=64, primary_key=True)  # A digest of the limit and the caller
    failures = models.PositiveIntegerField(default=0)
    ends_at = models.DateTimeField(db_index=True)

    class Meta:
        app_label = "mcp_bridge"

    def __str__(self) -> str:
        return self.key


class AllowedApplication(Recorded):
    """A user's consent to an application that acts for them, until it is revoked."""

    recorded_besides: ClassVar[tuple[str, ...]] = ("revoked_at",)

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, editable=False)
    application = models.ForeignKey(
        settings.OAUTH2_PROVIDER_APPLICATION_MODEL,
        on_delete=models.CASCADE,
        related_name="allowed",
        editable=False,
    )
    name = models.CharField(
        max_length=255, editable=False, help_text="The name that the application gives itself."
    )
    scopes = JSONTextField(default=list, editable=False)
    toolset = models.CharField(
        max_length=100, blank=True, editable=False
    )  # A slug; empty: all that is exposed
    allowed_at = models.DateTimeField(editable=False)
    last_used_at = models.DateTimeField(null=True, editable=False, help_text="To the minute.")
    revoked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        app_label = "mcp_bridge"
        ordering = ("-allowed_at",)
        constraints = (
            models.UniqueConstraint(fields=["user", "application"], name="allowed_application_once"),
        )

    def __str__(self) -> str:
        return f"{self.name} for {self.user}"


class ExternalIdentity(models.Model):
    """A user's identity at another authorization server or OpenID provider."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    created_at = models.DateTimeField(auto_now_add=True)
    last_login_at = models.DateTimeField(null=True)
    made_user = models.BooleanField(default=False)  # The user was created at the first login

    class Meta:
        app_label = "mcp_bridge"
        constraints = (models.UniqueConstraint(fields=("issuer", "subject"), name="one_user_of_a_subject"),)

    def __str__(self) -> str:
        return f"{self.subject} at {self.issuer}"


class SecondFactor(models.Model):
    """Stores a user's proofs besides the password: an authenticator app and recovery codes."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="second_factor"
    )
    encrypted_key = models.TextField()
    confirmed_at = models.DateTimeField(null=True)  # None: no correct code has been entered yet
    last_step = models.BigIntegerField(default=0)  # Of the last accepted code; each is accepted once
    recovery_digests = JSONTextField(default=list)

    class Meta:
        app_label = "mcp_bridge"

    def __str__(self) -> str:
        return f"second factor of {self.user}"
