"""Bytes as content blocks hold them."""

import base64
import binascii
import contextlib


def decode(encoded: str) -> bytes | None:
    """The bytes, as leniently as clients read them: lines and a missing end do not matter.

    None for what is no base64.
    """
    with contextlib.suppress(binascii.Error, ValueError):
        return base64.b64decode(encoded, validate=True)
    try:
        compact = "".join(encoded.split()).rstrip("=")
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
