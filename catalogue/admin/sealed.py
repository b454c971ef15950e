"""Encrypted contents of pages: an import after its preview, and secrets of a refused form."""

import base64
import json
import time
import zlib
from typing import Any

from django.core.exceptions import PermissionDenied

from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials

ENTRIES_KEPT_SECONDS = 60 * 60


def seal(content: bytes, asked: dict[str, Any]) -> str:
    """The file and its options as JSON values, encrypted, as they may hold secrets."""
    return encrypt_credentials(
        {"import": base64.b64encode(zlib.compress(content)).decode(), "asked": json.dumps(asked)}
    )


def unseal(sealed: str) -> tuple[bytes, dict[str, Any]]:
    """Raises PermissionDenied for content sealed elsewhere."""
    try:
        opened = decrypt_credentials(sealed)
        return zlib.decompress(base64.b64decode(opened["import"])), json.loads(opened["asked"])
    except (CredentialsUnreadable, KeyError):
        raise PermissionDenied("That was not made here.") from None


def seal_entries(entries: dict[str, str], *, form: str) -> str:
    """Secrets for the next version of the same form; `form` names the form and its user."""
    if not entries:
        return ""
    kept = {"form": form, "sealed_at": str(time.time()), "entries": json.dumps(entries)}
    return encrypt_credentials(kept)


class EntriesLost(Exception):
    """The sealed entries are too old, or belong to another form or user."""


def unseal_entries(sealed: str, *, form: str) -> dict[str, str]:
    """The arguments of `seal_entries`. Raises EntriesLost where they have to be entered again."""
    if not sealed:
        return {}
    try:
        opened = decrypt_credentials(sealed)
        is_current = time.time() - float(opened["sealed_at"]) < ENTRIES_KEPT_SECONDS
        if opened["form"] != form or not is_current:
            raise EntriesLost
        entries: dict[str, str] = json.loads(opened["entries"])
    except (CredentialsUnreadable, KeyError):
        raise EntriesLost from None
    return entries
