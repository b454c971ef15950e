"""What was asked of an import, kept in its page: what is imported is what was looked at."""

import base64
import json
import zlib
from typing import Any

from django.core.exceptions import PermissionDenied

from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials


def seal(content: bytes, asked: dict[str, Any]) -> str:
    """The file and what was asked of it, as JSON values; encrypted, since it may hold secrets."""
    return encrypt_credentials(
        {"import": base64.b64encode(zlib.compress(content)).decode(), "asked": json.dumps(asked)}
    )


def unseal(sealed: str) -> tuple[bytes, dict[str, Any]]:
    """Raises PermissionDenied for what was sealed by nobody here."""
    try:
        opened = decrypt_credentials(sealed)
        return zlib.decompress(base64.b64decode(opened["import"])), json.loads(opened["asked"])
    except (CredentialsUnreadable, KeyError):
        raise PermissionDenied("That was not made here.") from None
