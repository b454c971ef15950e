"""Credentials at rest, encrypted with keys derived from SECRET_KEY, the newest first."""

import base64
import json
from functools import cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

PURPOSE = b"workflow-catalogue source credentials v1"


class CredentialsUnreadable(Exception):
    """The credentials were encrypted with another SECRET_KEY and have to be entered again."""


@cache
def _cipher(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return base64.urlsafe_b64encode(derivation.derive(key.encode()))


def _current_cipher() -> MultiFernet:
    return _cipher((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


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
