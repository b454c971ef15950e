"""What writes entries: `record`, in the transaction of what it tells of, and the sign-ins of Django."""

import json
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed

from audit.models import ADDRESS_LENGTH, NAME_LENGTH, Entry, Kind
from connectors.network.redaction import printable


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
    """Write an entry now. `address` and `client` are the request's unless given; `details` JSON values, none
    of them secret."""
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
    """Without control characters, and short enough."""
    return " ".join(printable(text).split())[:length]


def follow_sign_ins() -> None:
    for signal, receiver in (
        (user_logged_in, _note_sign_in),
        (user_logged_out, _note_sign_out),
        (user_login_failed, _note_failure),
    ):
        signal.connect(receiver, dispatch_uid=f"audit.{receiver.__name__}")


def _note_sign_in(user: Any, **_: Any) -> None:
    named = {"actor": f"user:{user.pk}", "actor_name": user.get_username()}
    record(
        Kind.SIGN_IN, "sign_in.succeeded", **named, outcome="succeeded", backend=getattr(user, "backend", "")
    )


def _note_sign_out(user: Any, **_: Any) -> None:
    if user is not None:  # Not of visitors who never signed in
        record(Kind.SIGN_IN, "sign_in.ended", actor=f"user:{user.pk}", actor_name=user.get_username())


def _note_failure(credentials: dict[str, Any], **_: Any) -> None:
    """The name only of accounts that exist: what else is entered there may be a password."""
    users = get_user_model()
    given = credentials.get(users.USERNAME_FIELD) or credentials.get("username") or ""
    user = users._default_manager.filter(**{users.USERNAME_FIELD: str(given)[:NAME_LENGTH]}).first()
    named = {} if user is None else {"subject": f"user:{user.pk}", "subject_name": user.get_username()}
    record(Kind.SIGN_IN, "sign_in.failed", outcome="failed", known_account=user is not None, **named)
