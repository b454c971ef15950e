"""The entries of the audit, the segments that seal them, and how far the records of other rooms have been
gathered. `record` writes an entry in the transaction of the event.

Triggers of the first migration refuse all changes except those of sealing and the retention.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.core.signing import BadSignature, Signer
from django.db import models
from django.dispatch import receiver
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from connectors.formats.json import as_object
from connectors.network.redaction import printable

NAME_LENGTH, ADDRESS_LENGTH = 255, 100
SALT = "audit proof v1"


def make_proof(content: Any) -> str:
    """Shows that a process with SECRET_KEY wrote the content: JSON values, times and UUIDs."""
    return Signer(salt=SALT).signature(_text_of(content))


def is_proof(proof: str, content: Any) -> bool:
    """Returns whether the proof is of the content, with a key of SECRET_KEY_FALLBACKS too."""
    with suppress(BadSignature):
        return bool(Signer(salt=SALT).unsign(f"{_text_of(content)}:{proof}"))
    return False


def _text_of(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> str:
    return as_text(value) if isinstance(value, datetime) else str(value)


class ProofField(models.CharField):  # type: ignore[type-arg]
    """Null: written by an older version, or not by the product."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_length": 150, "null": True, "editable": False} | options)

    def pre_save(self, model_instance: Any, add: bool) -> Any:
        if getattr(model_instance, self.attname) is None:
            setattr(model_instance, self.attname, model_instance.make_proof(self.attname))
        return super().pre_save(model_instance, add)


class Proven(models.Model):
    """A row with a proof of its columns, apart from those that may change."""

    proof = ProofField(help_text="Shows that a process with SECRET_KEY wrote the row.")
    may_change: ClassVar[Sequence[str]] = ()

    class Meta:
        abstract = True

    def make_proof(self, _: str) -> str | None:
        return make_proof(self._proven())

    @property
    def is_proven(self) -> bool:
        return is_proof(self.proof or "", self._proven())

    def save_proven(self, **changes: Any) -> None:
        """Change columns that the proof covers. What somebody else changed stays unproven."""
        proof = None if self.is_proven else self.proof or ""
        for name, value in {**changes, "proof": proof}.items():
            setattr(self, name, value)
        self.save(update_fields=[*changes, "proof"])

    def _proven(self) -> dict[str, Any]:
        """The database has not given the number yet when the proof is made."""
        left_out = {"id", "proof", *self.may_change}
        names = [field.attname for field in self._meta.concrete_fields if field.name not in left_out]
        return {"model": self._meta.label_lower, **{name: getattr(self, name) for name in names}}


class Kind(models.TextChoices):
    SIGN_IN = "sign_in", _("sign-in")
    TOKEN = "token", _("token")
    ACCOUNT = "account", _("user or role")
    APPROVAL = "approval", _("approval")
    CURATION = "curation", _("curation")
    SETTING = "setting", _("setting")
    IMPORT = "import", _("import")
    EXPORT = "export", _("export")
    CALL = "call", _("call")
    AUDIT = "audit", _("the audit itself")


class Entry(Proven):
    """An action of a person, a token or the product. It outlives all objects that it names."""

    at = models.DateTimeField(_("when"), default=timezone.now)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    event = models.CharField(max_length=40, help_text="Such as sign_in.failed.")
    actor = models.CharField(max_length=NAME_LENGTH, blank=True, help_text="Such as user:1 or token:7.")
    actor_name = models.CharField(
        _("who"), max_length=NAME_LENGTH, blank=True, help_text="As it was called then."
    )
    address = models.CharField(
        _("from"), max_length=ADDRESS_LENGTH, blank=True, help_text="The client's network address."
    )
    client = models.CharField(
        max_length=NAME_LENGTH, blank=True, help_text="What the client says that it is."
    )
    door = models.CharField(max_length=20, blank=True, help_text="Such as admin, rest or mcp.")
    subject = models.CharField(
        max_length=NAME_LENGTH, blank=True, help_text="What it was done to, such as catalogue.source:5."
    )
    subject_name = models.CharField(_("what"), max_length=NAME_LENGTH, blank=True)
    outcome = models.CharField(max_length=20, blank=True)
    details = models.TextField(default="{}", help_text="More of it, as a JSON object.")
    key = models.CharField(  # noqa: DJ001 - several without one are no duplicates
        max_length=80, null=True, help_text="Names the record of another room that it tells of."
    )
    segment = models.PositiveBigIntegerField(null=True, help_text="Empty until it is sealed.")

    may_change = ("segment",)
    is_of_proven_record = False  # Not stored: the other room's record that it tells of is proven

    class Meta:
        ordering = ("-at", "-pk")
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["-at", "-id"], name="audit_by_time"),
            models.Index(fields=["kind", "-at"], name="audit_by_kind"),
            models.Index(fields=["actor", "-at"], name="audit_by_actor"),
            models.Index(fields=["event", "-at"], name="audit_by_event"),
            models.Index(fields=["outcome", "-at"], name="audit_by_outcome"),
            models.Index(fields=["subject", "-at"], name="audit_by_subject"),
            models.Index(fields=["segment"], name="audit_by_segment"),
            models.Index(fields=["id"], name="audit_unsealed", condition=models.Q(segment=None)),
        ]
        constraints = [models.UniqueConstraint(fields=["key"], name="one_audit_entry_per_record")]

    def __str__(self) -> str:
        return f"{self.event} {self.subject_name}".strip()

    def make_proof(self, name: str) -> str | None:
        """None for those that are sealed as they are stored."""
        return super().make_proof(name) if self.segment is None else None

    @property
    def is_proven(self) -> bool:
        return self.is_of_proven_record or super().is_proven

    @property
    def is_trusted(self) -> bool:
        """Sealed, which `verify` checks, or proven."""
        return self.segment is not None or self.is_proven

    @property
    def told(self) -> dict[str, Any]:
        try:
            return as_object(json.loads(self.details))
        except (ValueError, RecursionError):
            return {}

    def content(self) -> dict[str, Any]:
        """Everything that is sealed, as JSON values."""
        return {"id": self.pk, **self.contents()}

    def contents(self) -> dict[str, Any]:
        """The same without its number."""
        return {"at": as_text(self.at), **{name: getattr(self, name) for name in TOLD}}

    @property
    def digest(self) -> str:
        return digest_of(self.content())


TOLD = (
    "kind", "event", "actor", "actor_name", "address", "client", "door", "subject", "subject_name", "outcome",
    "details", "key",
)  # fmt: skip


def as_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(_text_of(content).encode()).hexdigest()


class Segment(models.Model):
    """Some entries of one kind under one digest, which covers the digest of the segment before."""

    number = models.PositiveBigIntegerField(primary_key=True)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    sealed_at = models.DateTimeField()
    newest_at = models.DateTimeField(help_text="When its latest entry happened.")
    entries = models.PositiveIntegerField()
    root = models.CharField(max_length=64, help_text="SHA-256 of the leaves.")
    previous = models.CharField(max_length=64, blank=True, help_text="The digest of the segment before.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of all of the above.")
    seal = models.CharField(max_length=64, help_text="HMAC of the digest with a key from SECRET_KEY.")
    seal_key = models.CharField(max_length=16, help_text="Tells keys of seals apart.")
    leaves = models.TextField(blank=True, help_text="Number and SHA-256 of each entry, a line each.")
    pruned_at = models.DateTimeField(null=True, help_text="When the retention removed its entries.")

    class Meta:
        ordering = ("number",)
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["kind", "newest_at"],
                name="audit_segment_kept",
                condition=models.Q(pruned_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    def content(self) -> dict[str, Any]:
        """Everything that its digest covers, as JSON values."""
        return {
            "number": self.number,
            "kind": self.kind,
            "sealed_at": as_text(self.sealed_at),
            "newest_at": as_text(self.newest_at),
            "entries": self.entries,
            "root": self.root,
            "previous": self.previous,
        }


class Progress(models.Model):
    """One row: how far the records of other rooms have been gathered. Sealers take turns by its lock."""

    ONLY = 1
    id = models.PositiveSmallIntegerField(primary_key=True, default=ONLY, editable=False)
    gathered = models.TextField(default="{}", help_text="Until when, by the name of the record, as JSON.")
    rechecked_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_audit_progress")]

    def __str__(self) -> str:
        return self.gathered


@dataclass(frozen=True, slots=True)
class Origin:
    address: str
    client: str


origin: ContextVar[Origin | None] = ContextVar("origin", default=None)
"""Where the present request of a page or of REST comes from."""


def record(
    kind: Kind,
    event: str,
    *,
    actor: str = "",
    actor_name: str = "",
    door: str = "",
    subject: str = "",
    subject_name: str = "",
    outcome: str = "",
    address: str | None = None,
    client: str | None = None,
    **details: Any,
) -> Entry:
    """Write an entry now. `address` and `client` default to those of the request. `details` are JSON values
    without secrets."""
    here = origin.get() or Origin("", "")
    return Entry.objects.create(
        kind=kind,
        event=event,
        actor=clean(actor),
        actor_name=clean(actor_name),
        door=door,
        subject=clean(subject),
        subject_name=clean(subject_name),
        outcome=outcome,
        address=clean(here.address if address is None else address, ADDRESS_LENGTH),
        client=clean(here.client if client is None else client),
        details=json.dumps(details, sort_keys=True),
    )


def clean(text: str, length: int = NAME_LENGTH) -> str:
    """Removes control characters and shortens the text."""
    return " ".join(printable(text).split())[:length]


@receiver(user_logged_in)
def _note_sign_in(user: Any, **_: Any) -> None:
    named = {"actor": f"user:{user.pk}", "actor_name": user.get_username()}
    record(
        Kind.SIGN_IN, "sign_in.succeeded", **named, outcome="succeeded", backend=getattr(user, "backend", "")
    )


@receiver(user_logged_out)
def _note_sign_out(user: Any, **_: Any) -> None:
    if user is not None:  # None for visitors who never signed in
        record(Kind.SIGN_IN, "sign_in.ended", actor=f"user:{user.pk}", actor_name=user.get_username())


@receiver(user_login_failed)
def _note_failure(credentials: dict[str, Any], **_: Any) -> None:
    """Only names of existing accounts are recorded: other input may be a password."""
    users = get_user_model()
    given = credentials.get(users.USERNAME_FIELD) or credentials.get("username") or ""
    user = users._default_manager.filter(**{users.USERNAME_FIELD: str(given)[:NAME_LENGTH]}).first()
    named = {} if user is None else {"subject": f"user:{user.pk}", "subject_name": user.get_username()}
    record(Kind.SIGN_IN, "sign_in.failed", outcome="failed", known_account=user is not None, **named)
