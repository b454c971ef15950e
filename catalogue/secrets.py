"""Stored credentials, encrypted with keys derived from SECRET_KEY, the newest first; references to secrets
that are stored elsewhere: `env:CATALOGUE_SECRET_NAME`, `file:name`; and the hashing of passwords."""

import base64
import hashlib
import json
import lzma
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import PermissionDenied

PURPOSE = b"workflow-catalogue source credentials v1"


class CredentialsUnreadable(Exception):
    """The credentials were encrypted with another SECRET_KEY and must be entered again."""


@cache
def _cipher_with(*keys: str) -> MultiFernet:
    """Encrypts with the first key."""
    ciphers = []
    for key in keys:
        derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
        ciphers.append(Fernet(base64.urlsafe_b64encode(derivation.derive(key.encode()))))
    return MultiFernet(ciphers)


def encrypt_credentials(credentials: dict[str, str]) -> str:
    """Empty for no credentials."""
    if not credentials:
        return ""
    return _cipher_with(settings.SECRET_KEY).encrypt(json.dumps(credentials).encode()).decode()


def decrypt_credentials(stored: str, *, kept_seconds: int | None = None) -> dict[str, str]:
    """Raises CredentialsUnreadable after a change of SECRET_KEY, and for what is older."""
    if not stored:
        return {}
    cipher = _cipher_with(settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    try:
        credentials: dict[str, str] = json.loads(cipher.decrypt(stored.encode(), kept_seconds))
    except InvalidToken:
        raise CredentialsUnreadable(
            "The stored credentials cannot be decrypted with the present SECRET_KEY; enter them again."
        ) from None
    return credentials


VARIABLE, FILE = "env:", "file:"
VARIABLES = "CATALOGUE_SECRET_"  # Only variables with this prefix can be referenced
MAX_FILE_BYTES = 64 * 1024  # Bytes; certificates with their chain fit


class SecretUnavailable(Exception):
    """A reference does not lead to a secret. The message says what to do, without any values."""


def is_reference(value: str) -> bool:
    return value.startswith((VARIABLE, FILE))


def resolve(value: str) -> str:
    """The secret that a reference names, read anew each time; other values are returned as they are. Raises
    SecretUnavailable."""
    if value.startswith(FILE):
        return _read_file(value.removeprefix(FILE).strip())
    if not value.startswith(VARIABLE):
        return value
    name = value.removeprefix(VARIABLE).strip()
    if not name.startswith(VARIABLES) or name == VARIABLES:
        raise SecretUnavailable(f"only environment variables that begin with {VARIABLES} can be referenced.")
    secret: str = settings.SECRET_VARIABLES.get(name, "").strip()
    if not secret:
        raise SecretUnavailable(
            f"the environment variable {name} is not set. Set it for all processes and restart them."
        )
    return secret


def resolve_all(credentials: Mapping[str, Any]) -> dict[str, Any]:
    """Returns them by the same names. Raises SecretUnavailable, whose message begins with the name."""
    resolved = {}
    for name, value in credentials.items():
        try:
            resolved[name] = resolve(value) if isinstance(value, str) else value
        except SecretUnavailable as error:
            raise SecretUnavailable(f"{name}: {error}") from None
    return resolved


def _read_file(name: str) -> str:
    folder = Path(settings.SECRETS_DIR).resolve()
    outside = SecretUnavailable(f"only files below {folder} can be referenced (CATALOGUE_SECRETS_DIR).")
    try:
        # Not only textually: links may lead elsewhere. Orchestrators use links within the folder.
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError):
        raise outside from None
    if not path.is_relative_to(folder) or path == folder:
        raise outside
    shown = path.relative_to(folder)
    try:
        # A pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SecretUnavailable(f"{shown} in {folder} is not a regular file.")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SecretUnavailable(f"the file {shown} in {folder} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise SecretUnavailable(f"the file {shown} in {folder} has more than {MAX_FILE_BYTES:,} bytes.")
    try:
        secret = content.decode().strip()
    except UnicodeDecodeError:
        raise SecretUnavailable(f"the file {shown} in {folder} is not UTF-8 text.") from None
    if not secret:
        raise SecretUnavailable(f"the file {shown} in {folder} is empty.")
    return secret


@lru_cache(maxsize=1_000)
def references_in(stored: str) -> tuple[str, ...]:
    """The references in encrypted credentials; none if these cannot be decrypted."""
    try:
        values: Iterable[Any] = decrypt_credentials(stored).values()
    except CredentialsUnreadable:
        return ()
    return tuple(value for value in values if isinstance(value, str) and is_reference(value))


def state_of(references: Iterable[str]) -> str:
    """A digest that changes with the referenced secrets."""
    digest = hashlib.sha256()
    for reference in references:
        try:
            digest.update(resolve(reference).encode() + b"\0")
        except SecretUnavailable as error:
            digest.update(b"\1" + str(error).encode())
    return digest.hexdigest()


ENTRIES_KEPT_SECONDS = 60 * 60


def seal(content: bytes, asked: dict[str, Any]) -> str:
    """A file or plan and its options as JSON values, encrypted, as they may hold secrets. A plan repeats long
    schemas, which zlib does not see: 19 MB of Kubernetes' tools become 0.7 MB instead of 6."""
    packed = lzma.compress(content, preset=1)
    return encrypt_credentials({"import": base64.b64encode(packed).decode(), "asked": json.dumps(asked)})


def unseal(sealed: str) -> tuple[bytes, dict[str, Any]]:
    """Raises PermissionDenied for content sealed elsewhere."""
    try:
        opened = decrypt_credentials(sealed)
        return lzma.decompress(base64.b64decode(opened["import"])), json.loads(opened["asked"])
    except (CredentialsUnreadable, KeyError, lzma.LZMAError):
        raise PermissionDenied("This was not created by this installation.") from None


def seal_entries(entries: dict[str, Any], *, form: str) -> str:
    """Secrets, as JSON values, for the next version of the same form; `form` names the form and its user."""
    if not entries:
        return ""
    return encrypt_credentials({"form": form, "entries": json.dumps(entries)})


class EntriesLost(Exception):
    """The sealed entries are too old, or belong to another form or user."""


def unseal_entries(sealed: str, *, form: str) -> dict[str, Any]:
    """The arguments of `seal_entries`. Raises EntriesLost if the secrets must be entered again."""
    if not sealed:
        return {}
    try:
        opened = decrypt_credentials(sealed, kept_seconds=ENTRIES_KEPT_SECONDS)
    except CredentialsUnreadable:
        raise EntriesLost from None
    if opened.get("form") != form:
        raise EntriesLost
    entries: dict[str, Any] = json.loads(opened["entries"])
    return entries
