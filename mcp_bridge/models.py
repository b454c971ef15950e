from typing import ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from catalogue.fields import JSONTextField
from catalogue.models import Recorded, Toolset
from catalogue.models.toolset import LONGEST_INLINE_WAIT
from catalogue.scopes import Scope
from executions.callers import Caller

MARGIN_OF_PATIENCE = 5  # Calls are answered a fifth of their client's patience before it ends, at least 1 s
DEFAULT_SCOPES = (Scope.READ, Scope.RUN)


def default_scopes() -> list[str]:
    return [scope.value for scope in DEFAULT_SCOPES]


class AccessTokenQuerySet(models.QuerySet["AccessToken"]):
    def usable(self) -> "AccessTokenQuerySet":
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)


class AccessToken(Recorded):
    """A bearer token; only its hash is kept, the token itself is shown once."""

    recorded_besides: ClassVar[tuple[str, ...]] = ("revoked_at",)

    name = models.CharField(max_length=100, unique=True)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    prefix = models.CharField(
        max_length=12, editable=False, help_text="The first characters, to recognise it by."
    )
    scopes = JSONTextField(default=default_scopes)
    toolset = models.ForeignKey(
        Toolset,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="tokens",
        help_text="All that it sees and runs. Empty: whatever is exposed.",
    )
    inline_wait_seconds = models.PositiveIntegerField(
        "inline wait",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LONGEST_INLINE_WAIT)],
        help_text="Seconds that a tool call waits before it gets a handle: less than the client waits. "
        "Empty: its toolset's, else the product's default.",
    )
    patience_seconds = models.PositiveIntegerField(
        "patience",
        null=True,
        editable=False,
        help_text="After how many seconds its clients were seen to give calls up; the shortest.",
    )
    gave_up_after = models.PositiveIntegerField(
        null=True, editable=False
    )  # Seconds; a patience once repeated
    gave_up_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, editable=False, help_text="To the minute.")

    objects: ClassVar[models.Manager["AccessToken"]] = AccessTokenQuerySet.as_manager()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        unbounded = [scope for scope in (Scope.ADMIN, Scope.VIEW) if scope in self.scopes]
        if self.toolset is not None and unbounded:
            changes = " and changes" if Scope.ADMIN in unbounded else ""
            everything = f"A token with the scope {unbounded[0].value} sees{changes} everything"
            raise ValidationError({"toolset": f"{everything}, so no toolset can bound it: leave out either."})

    @property
    def caller(self) -> Caller:
        return Caller(
            key=f"token:{self.pk}",
            name=self.name,
            sees_everything=Scope.ADMIN in self.scopes,
            toolset=None if self.toolset is None else self.toolset.slug,
        )

    @property
    def granted(self) -> frozenset[str]:
        """Includes implied scopes: `catalogue:admin` allows everything."""
        return frozenset(Scope.values if Scope.ADMIN in self.scopes else self.scopes)

    @property
    def learned_wait_seconds(self) -> int | None:
        """An inline wait that its clients survive; None if none was seen to give up."""
        patience = self.patience_seconds
        return None if patience is None else patience - max(patience // MARGIN_OF_PATIENCE, 1)

    def allows(self, scope: Scope) -> bool:
        return scope in self.granted

    def revoke(self) -> None:
        self.revoked_at = timezone.now()
        self.save(update_fields=["revoked_at"])


class FailureCount(models.Model):
    """Failed attempts of one caller within one window."""

    key = models.CharField(max_length=64, primary_key=True)  # A digest of the limit and the caller
    failures = models.PositiveIntegerField(default=0)
    ends_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key
