"""Make a virtual environment hold exactly what a lock file says, at no cost when it already does.

    python3 dev/scripts/install.py ENVIRONMENT LOCK [PART ...]

PART names lock files that LOCK contains, so that a later installation of one of those has nothing to do.
uv installs, from the indexes of pip's configuration; where that fails, pip does.
Uses the standard library only: it runs before anything is installed.
"""

import ast
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / ".cache" / "install"
UV_ENVIRONMENT = ROOT / ".cache" / "installer"
UV_LOCK = ROOT / "requirements" / "installer.lock"
STAMP = "installed-from-locks"

PIP_OPTIONS = (
    "--require-hashes",
    "--no-deps",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)
# The lock is complete, so nothing needs resolving, and its hashes make all indexes equivalent.
UV_OPTIONS = (
    "--require-hashes",
    "--no-deps",
    "--no-progress",
    "--compile-bytecode",
    "--index-strategy=unsafe-best-match",
)
UV_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX",),
    "extra-index-url": ("UV_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "cert": ("SSL_CERT_FILE",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "trusted-host": ("UV_INSECURE_HOST",),
}
"""The equivalents of pip's settings for uv, which does not read pip's configuration."""

OF_NO_CONSEQUENCE = {
    *("timeout", "default-timeout", "retries", "disable-pip-version-check", "no-input", "quiet", "verbose"),
    # A lock pins every package, so a constraint could only forbid it.
    "constraint",
    *(
        "progress-bar",
        "no-color",
        "root-user-action",
        "require-virtualenv",
        "cache-dir",
        "log",
        "config-file",
    ),
}
"""Settings of pip that do not change what is installed from where. pip itself applies all others."""

SHOWN_LINES = 6
SHOWN_CHARACTERS = 300

# Checked before anything that an old Python does not support.
if sys.version_info < (3, 11):
    sys.exit(
        f"Python 3.11 or newer is needed, and {sys.executable} is {sys.version.split()[0]}. "
        "Install a newer one and name it, for example: make PYTHON=python3.12 run"
    )


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    environment, lock, parts = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    stamp = environment / STAMP
    wanted = stamp_lines([lock, *parts], environment)
    if set(wanted) <= set(read_lines(stamp)) and python_of(environment).exists():
        return
    name = environment.name
    packages = len(re.findall(r"^\w\S*==", Path(lock).read_text(encoding="utf-8"), re.MULTILINE))
    with timed(name, f"about {packages} packages of {lock}"), log_for(name) as log:
        # An interrupted installation must not look like a finished one.
        stamp.unlink(missing_ok=True)
        make_environment(environment, log)
        install(environment, lock, log)
        stamp.write_text("\n".join(wanted) + "\n", encoding="utf-8")


@contextlib.contextmanager
def timed(name: str, what: str) -> Iterator[None]:
    """Prints a line before and a line after. Ctrl-C prints a sentence instead of a traceback."""
    print(f"{name}: installing {what} ...", flush=True)
    started = time.monotonic()
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(f"{name}: interrupted; the next run continues.")
    print(f"{name}: ready after {time.monotonic() - started:.0f} s.", flush=True)


@contextlib.contextmanager
def log_for(name: str) -> Iterator[Path]:
    """An empty file for the output of programs that install something of this name."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name.lstrip('.')}.log"
    log.write_text("", encoding="utf-8")
    yield log


def check_venv() -> None:
    """Debian ships `venv` without the `ensurepip` that it needs."""
    if any(importlib.util.find_spec(module) is None for module in ("venv", "ensurepip")):
        sys.exit(
            f"{sys.executable} cannot make virtual environments: its venv or ensurepip module is missing. "
            f"On Debian or Ubuntu: apt-get install python{dotted(sys.version_info[:2])}-venv"
        )


def stamp_lines(locks: list[str], environment: Path) -> list[str]:
    """The properties of an environment that was installed from these locks."""
    place = f"{environment} python {dotted(sys.version_info[:2])}"
    return [f"{place} {lock} {hashlib.sha256(Path(lock).read_bytes()).hexdigest()}" for lock in locks]


def read_lines(stamp: Path) -> list[str]:
    return stamp.read_text(encoding="utf-8").splitlines() if stamp.exists() else []


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def make_environment(environment: Path, log: Path) -> None:
    """A new environment, unless a working one of this Python version is there."""
    if fits(environment):
        return
    check_venv()
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    if run([interpreter, "-m", "venv", "--clear", str(environment)], log):
        fail(log, f"{environment.name}: Python could not make this virtual environment.")


def fits(environment: Path) -> bool:
    question = "import pip, sys; print(sys.version_info[:2], sys.prefix)"
    try:
        answer = subprocess.run(
            [str(python_of(environment)), "-c", question], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return answer.stdout.strip() == f"{tuple(sys.version_info[:2])} {environment}"


def install(environment: Path, lock: str, log: Path) -> None:
    if not install_with_uv(environment, lock, log) and run_pip(environment, lock, log):
        fail(
            log,
            f"{environment.name}: pip could not install what {lock} lists.",
            "Check the network and `pip config list`, and run the command again: it continues from here.",
        )


def install_with_uv(environment: Path, lock: str, log: Path) -> bool:
    variables = variables_for_uv(pip_settings(environment))
    if variables is None or not ready_uv(log):
        return False
    options = ["--python", str(python_of(environment)), *UV_OPTIONS, "-r", lock]
    uv = str(UV_ENVIRONMENT / "bin" / "uv")
    return run([uv, "pip", "install", *options], log, {**variables, **os.environ}) == 0


def run_pip(environment: Path, lock: str, log: Path) -> int:
    return run([str(python_of(environment)), "-m", "pip", "install", *PIP_OPTIONS, "-r", lock], log)


def ready_uv(log: Path) -> bool:
    """pip installs it once; concurrent installations wait for the first of them."""
    wanted = stamp_lines([str(UV_LOCK)], UV_ENVIRONMENT)
    with (LOGS / "uv.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if read_lines(UV_ENVIRONMENT / STAMP) == wanted:
            return True
        make_environment(UV_ENVIRONMENT, log)
        if run_pip(UV_ENVIRONMENT, str(UV_LOCK), log):
            return False
        (UV_ENVIRONMENT / STAMP).write_text("\n".join(wanted) + "\n", encoding="utf-8")
        return True


def pip_settings(environment: Path) -> dict[str, str]:
    """The settings in pip's configuration files and environment variables, by precedence."""
    command = [str(python_of(environment)), "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.findall(r"^(global|install|:env:)\.([\w-]+)=(.*)$", listing, re.MULTILINE)
    found.sort(key=lambda one: ("global", "install", ":env:").index(one[0]))
    return {name: str(ast.literal_eval(value)) for _, name, value in found}


def variables_for_uv(settings: dict[str, str]) -> dict[str, str] | None:
    """None if pip's settings require something that only pip does."""
    if settings.keys() - UV_VARIABLES.keys() - OF_NO_CONSEQUENCE:
        return None
    variables: dict[str, str] = {}
    for setting, names in UV_VARIABLES.items():
        if setting in settings:
            separator = "," if setting == "find-links" else " "
            variables |= dict.fromkeys(names, separator.join(settings[setting].split()))
    return variables


def run(
    command: list[str], log: Path, variables: dict[str, str] | None = None, folder: Path | None = None
) -> int:
    with log.open("a", encoding="utf-8") as output:
        print("$", *command, file=output, flush=True)
        outcome = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            cwd=folder,
            check=False,
        )
    return outcome.returncode


def fail(log: Path, what: str, advice: str = "") -> None:
    """Exit with the last errors in the log, or with its last lines if it has no errors."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    lines = [line for line in lines if line and line != "npm error"]
    errors = [line for line in lines if re.match(r"(npm )?error\b", line, re.IGNORECASE)] or lines
    shown = [f"  {line[:SHOWN_CHARACTERS]}" for line in errors[-SHOWN_LINES:]]
    sys.exit("\n".join(filter(None, [what, *shown, f"All of the output: {log}", advice])))


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    main()
