import base64
import hashlib
import subprocess
import sys

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from loguru import logger

NICENESS = 12  # On a busy core such a process gets about a fifteenth of the time
LONGEST_SECONDS = 60
DERIVE = (
    "import hashlib, os, sys; os.nice({niceness}); lines = sys.stdin.buffer.read().split(b'\\n'); "
    "password, salt = (bytes.fromhex(line.decode()) for line in lines[:2]); "
    "print(hashlib.pbkdf2_hmac({digest!r}, password, salt, {iterations}).hex())"
)


class BackgroundPBKDF2(PBKDF2PasswordHasher):
    """Django's own hashes, computed in a process of low priority: most of a second of a core for each guess,
    which tool calls need."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if not salt or "$" in salt:
            return super().encode(password, salt, iterations)  # Which refuses it
        rounds = iterations or self.iterations
        found = self._derive(password.encode(), salt.encode(), rounds)
        if found is None:
            return super().encode(password, salt, iterations)
        return f"{self.algorithm}${rounds}${salt}${found}"

    def _derive(self, password: bytes, salt: bytes, iterations: int) -> str | None:
        """As Django encodes it; None if no process can be started."""
        program = DERIVE.format(niceness=NICENESS, digest=hashlib.sha256().name, iterations=iterations)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", program],
                input=f"{password.hex()}\n{salt.hex()}\n".encode(),
                capture_output=True,
                timeout=LONGEST_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning(
                "A password is checked in this process: no other one did ({}).", type(error).__name__
            )
            return None
        return base64.b64encode(bytes.fromhex(done.stdout.decode().strip())).decode("ascii").strip()
