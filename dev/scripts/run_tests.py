"""Run pytest, and the tests that failed once more by themselves if they are few: `make check`.

On a busy machine one test of 13,000 may be too late. What fails again is wrong; many are no accident.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SOME_FAILED = 1
FEW = 10  # One fixture that is late fails all tests of its module


def main() -> int:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *sys.argv[1:]]
        code, names = subprocess.run(command, check=False).returncode, Path(cache, "v/cache/lastfailed")
        failed = json.loads(names.read_text(encoding="utf-8")) if names.exists() else {}
        if code != SOME_FAILED or not 0 < len(failed) <= FEW:
            return code
        print("\nOnce more, alone:", *failed, sep="\n  ", flush=True)
        return subprocess.run([*command, "--last-failed", "-n", "0"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
