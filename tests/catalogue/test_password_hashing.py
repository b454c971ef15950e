"""Passwords are hashed by another process, in Django's own format."""

import subprocess

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from catalogue.secrets import BackgroundPBKDF2

PASSWORD = "pässword, of\nseveral \x00 words"


@pytest.mark.parametrize("works", [True, False])
def test_either_hasher_reads_what_the_other_wrote(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """B8: also where no process can be started."""
    ours, djangos = BackgroundPBKDF2(), PBKDF2PasswordHasher()
    if not works:
        monkeypatch.setattr(subprocess, "run", _fail)
    written = ours.encode(PASSWORD, "salt", 1000)
    assert written == djangos.encode(PASSWORD, "salt", 1000)
    assert ours.verify(PASSWORD, written) and not ours.verify("other", written)


def _fail(*_: object, **__: object) -> None:
    raise OSError("no more processes")
