"""Credentials at rest, encrypted with keys derived from SECRET_KEY, the newest first."""

import base64
import json
import time
import zlib
from functools import cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import PermissionDenied

PURPOSE = b"workflow-catalogue source credentials v1"


class CredentialsUnreadable(Exception):
    """The credentials were encrypted with another SECRET_KEY and have to be entered again."""


@cache
def _cipher_with(key: str) -> Fernet:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return Fernet(base64.urlsafe_b64encode(derivation.derive(key.encode())))


def _current_cipher() -> MultiFernet:
    return MultiFernet([_cipher_with(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def encrypt_credentials(credentials: dict[str, str]) -> str:
    """Empty for no credentials."""
    return _current_cipher().encrypt(json.dumps(credentials).encode()).decode() if credentials else ""


def decrypt_credentials(stored: str) -> dict[str, str]:
    """Raises CredentialsUnreadable after a change of SECRET_KEY."""
    if not stored:
        return {}
    try:
        credentials: dict[str, str] = json.loads(_current_cipher().decrypt(stored.encode()))
    except InvalidToken:
        raise CredentialsUnreadable(
            "The stored credentials cannot be decrypted with the present SECRET_KEY; enter them again."
        ) from None
    return credentials


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
