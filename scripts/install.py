"""Make a virtual environment hold exactly what a lock file says, at no cost when it already does.

    python3 scripts/install.py ENVIRONMENT LOCK [PART ...]

PART names lock files that LOCK contains, so that a later installation of one of those has nothing to do.
Uses the standard library only: it runs before anything is installed.
"""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

STAMP = "installed-from-locks"

# Asked before anything that an old Python would stumble over.
if sys.version_info < (3, 11):
    sys.exit(
        f"Python 3.11 or newer is needed, and {sys.executable} is {sys.version.split()[0]}. "
        "Install a newer one and name it, for example: make PYTHON=python3.12 run"
    )


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    environment, lock, parts = Path(sys.argv[1]).absolute(), sys.argv[2], sys.argv[3:]
    stamp = environment / STAMP
    wanted = stamp_lines([lock, *parts], environment)
    if set(wanted) <= set(read_lines(stamp)) and python_of(environment).exists():
        return
    # An interrupted installation must not look like a finished one.
    stamp.unlink(missing_ok=True)
    make_environment(environment)
    install(environment, lock)
    stamp.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    print(f"{environment.name} is ready.", flush=True)


def check_venv() -> None:
    """Debian ships `venv` without the `ensurepip` that it needs."""
    if any(importlib.util.find_spec(module) is None for module in ("venv", "ensurepip")):
        sys.exit(
            f"{sys.executable} cannot make virtual environments: its venv or ensurepip module is missing. "
            f"On Debian or Ubuntu: apt-get install python{dotted(sys.version_info[:2])}-venv"
        )


def stamp_lines(locks: list[str], environment: Path) -> list[str]:
    """What has to be true of an environment that was installed from these locks."""
    place = f"{environment} python {dotted(sys.version_info[:2])}"
    return [f"{place} {lock} {hashlib.sha256(Path(lock).read_bytes()).hexdigest()}" for lock in locks]


def read_lines(stamp: Path) -> list[str]:
    return stamp.read_text(encoding="utf-8").splitlines() if stamp.exists() else []


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def make_environment(environment: Path) -> None:
    """A new environment, unless a working one of this Python version is there."""
    if fits(environment):
        return
    check_venv()
    print(f"Making {environment.name} with Python {dotted(sys.version_info[:3])} ...", flush=True)
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    run([interpreter, "-m", "venv", "--clear", str(environment)])


def fits(environment: Path) -> bool:
    question = "import pip, sys; print(sys.version_info[:2], sys.prefix)"
    try:
        answer = subprocess.run(
            [str(python_of(environment)), "-c", question], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return answer.stdout.strip() == f"{tuple(sys.version_info[:2])} {environment}"


def install(environment: Path, lock: str) -> None:
    print(f"Installing what {lock} lists into {environment.name} ...", flush=True)
    # The lock is complete, so nothing has to be resolved.
    options = ["--require-hashes", "--no-deps", "--no-input", "--disable-pip-version-check"]
    run([str(python_of(environment)), "-m", "pip", "install", *options, "-r", lock])


def run(command: list[str]) -> None:
    try:
        outcome = subprocess.run(command, check=False)
    except KeyboardInterrupt:
        sys.exit("Interrupted; the next run goes on.")
    if outcome.returncode:
        sys.exit(f"This failed, see above: {' '.join(command)}")


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    main()
