#!/usr/bin/env python3
"""A stand-in for a container engine, for `make image` and check_image.py on Debian machines that have none.

It builds deploy/Dockerfile on a root file system by debootstrap and runs that in namespaces of its own:
read-only, as the image's user, without capabilities. It knows what that file and check_image.py use, and
refuses the rest. Needs root, debootstrap and util-linux. Everything is in .cache/plain/.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2] / ".cache" / "plain"
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
SYSTEM_PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = re.compile(r"(https?|no)_proxy|PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL)|SSL_CERT_FILE", re.IGNORECASE)
"""Variables that a build needs to reach this machine's package index."""
SHARED = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
OF_NO_CONSEQUENCE = ("ARG", "LABEL", "VOLUME", "EXPOSE", "HEALTHCHECK")
MAX_SECONDS = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    build = commands.add_parser("build")
    build.add_argument("--file", type=Path, required=True)
    build.add_argument("--tag", required=True)
    build.add_argument("context", type=Path)
    build.set_defaults(do=lambda given: build_image(given.file, given.tag, given.context))
    run = commands.add_parser("run")
    for option in ("--rm", "--detach", "--read-only"):
        run.add_argument(option, action="store_true")
    for option in (
        "--network",
        "--cap-drop",
        "--security-opt",
        "--tmpfs",
        "--volume",
        "--name",
        "--entrypoint",
    ):
        run.add_argument(option, default="")
    run.add_argument("--env", action="append", default=[])
    run.add_argument("image")
    run.add_argument("words", nargs=argparse.REMAINDER)
    run.set_defaults(do=run_image)
    inside = commands.add_parser("exec")
    inside.add_argument("name")
    inside.add_argument("words", nargs=argparse.REMAINDER)
    inside.set_defaults(do=lambda given: run_inside(given.name, given.words))
    logs = commands.add_parser("logs")
    logs.add_argument("--tail", type=int)
    logs.add_argument("name")
    logs.set_defaults(
        do=lambda given: print("\n".join(log_of(given.name).read_text().splitlines()[-given.tail :]))
    )
    stop = commands.add_parser("stop")
    stop.add_argument("--time", type=float)
    stop.add_argument("name")
    stop.set_defaults(do=lambda given: stop_running(given.name, given.time))
    given = parser.parse_args()
    given.do(given)


def place_of(image: str) -> Path:
    return HOME / "images" / re.sub(r"\W", "_", image)


def log_of(name: str) -> Path:
    return HOME / "running" / f"{name}.log"


def build_image(file: Path, tag: str, context: Path) -> None:
    Build(file, place_of(tag), context).run()
    print(f"Built {tag} from {file} on Debian {SUITE}.")


class Build:
    """Stages are folders; the last one is the image."""

    def __init__(self, file: Path, place: Path, context: Path) -> None:
        self._file, self._place, self._context = file, place, context
        self._root = place
        ignoring = file.with_name(f"{file.name}.dockerignore").read_text().split()
        self._kept = [line[1:] for line in ignoring if line.startswith("!")]
        self._config: dict[str, Any] = {"env": {"PATH": SYSTEM_PATH}, "user": "0:0"}

    def run(self) -> None:
        for word, rest in instructions(self._file):
            if word in OF_NO_CONSEQUENCE:
                continue
            if (step := getattr(self, f"_{word.lower()}", None)) is None:
                sys.exit(f"{self._file}: {word} is not known here.")
            step(rest)
        (self._place / "config.json").write_text(json.dumps(self._config))

    def _from(self, rest: str) -> None:
        self._root = self._place / (rest.partition(" AS ")[2] or "last")
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(base()), str(self._root)], check=True)

    def _copy(self, rest: str) -> None:
        if rest.startswith("--from="):
            stage, source, target = rest.removeprefix("--from=").split()
            shutil.copytree(self._place / stage / source[1:], self._root / target[1:], symlinks=True)
            return
        source, target = rest.split()
        listed = ["git", "ls-files", "-z"]
        outcome = subprocess.run(
            listed, cwd=self._context / source, check=True, capture_output=True, text=True
        )
        for name in outcome.stdout.split("\0"):
            if name.partition("/")[0] in self._kept:
                place = self._root / target[1:] / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self._context / source / name, place)

    def _run(self, rest: str) -> None:
        command = json.loads(rest) if rest.startswith("[") else ["sh", "-ec", rest]
        given = {key: value for key, value in os.environ.items() if PASSED_ON.fullmatch(key)}
        for shared in SHARED:
            shutil.copy(shared, self._root / shared[1:])
        mounts = f"mount -t proc proc {self._root}/proc && mount --rbind /dev {self._root}/dev"
        variables = pairs(self._config["env"] | given)
        inner = shlex.join(["chroot", str(self._root), "env", "-i", *variables, *command])
        subprocess.run(["unshare", "--mount", "sh", "-ec", f"{mounts} && exec {inner}"], check=True)

    def _env(self, rest: str) -> None:
        words = shlex.split(rest.replace("$PATH", SYSTEM_PATH))
        self._config["env"] |= dict(pair.split("=", 1) for pair in words)

    def _user(self, rest: str) -> None:
        self._config["user"] = rest

    def _entrypoint(self, rest: str) -> None:
        self._config["entrypoint"] = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        """check_image.py names the command."""


def instructions(file: Path) -> list[tuple[str, str]]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line]


def base() -> Path:
    root = HOME / "base"
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return root


def pairs(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def run_image(given: argparse.Namespace) -> None:
    if (given.network, given.cap_drop, given.read_only) != ("host", "ALL", True):
        sys.exit("Only --network=host --cap-drop=ALL --read-only is known here.")
    config = json.loads((place_of(given.image) / "config.json").read_text())
    root, (outside, _, inside) = place_of(given.image) / "last", given.volume.partition(":")
    variables = config["env"] | dict(one.split("=", 1) for one in given.env)
    entrypoint = [given.entrypoint] if given.entrypoint else config["entrypoint"]
    mounts = [
        f"mount --bind {root} {root}",
        f"mount -o remount,bind,ro {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --rbind /dev {root}/dev",
        f"mount -t tmpfs tmpfs {root}{given.tmpfs}",
        f"mount --bind {shlex.quote(outside)} {root}{inside}",
    ]
    program = shlex.join([*as_user(root, config), "env", "-i", *pairs(variables), *entrypoint, *given.words])
    script = " && ".join([*mounts, f"exec {program}"])
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script]
    if not given.detach:
        sys.exit(subprocess.run(command, check=False, timeout=MAX_SECONDS).returncode)
    log_of(given.name).parent.mkdir(parents=True, exist_ok=True)
    with log_of(given.name).open("wb") as log:
        process = subprocess.Popen(
            ["timeout", str(MAX_SECONDS), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    state = {"pid": process.pid, "image": given.image, "env": variables}
    log_of(given.name).with_suffix(".json").write_text(json.dumps(state))


def as_user(root: Path, config: dict[str, Any]) -> list[str]:
    user, _, group = config["user"].partition(":")
    identity = [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    return [
        "chroot",
        str(root),
        "setpriv",
        *identity,
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
    ]


def innermost(name: str) -> tuple[int, dict[str, Any]]:
    """The process that has number 1 inside: below `timeout` and `unshare`."""
    state = json.loads(log_of(name).with_suffix(".json").read_text())
    pid = state["pid"]
    for _ in range(2):
        children = Path(f"/proc/{pid}/task/{pid}/children")
        if not children.exists() or not (below := children.read_text().split()):
            sys.exit(f"{name} does not run.")
        pid = int(below[0])
    return pid, state


def run_inside(name: str, words: list[str]) -> None:
    pid, state = innermost(name)
    config = json.loads((place_of(state["image"]) / "config.json").read_text())
    command = [
        "nsenter",
        f"--target={pid}",
        "--mount",
        "--pid",
        *as_user(place_of(state["image"]) / "last", config),
    ]
    sys.exit(subprocess.run([*command, "env", "-i", *pairs(state["env"]), *words], check=False).returncode)


def stop_running(name: str, seconds: float) -> None:
    """SIGTERM to the process that has number 1 inside; SIGKILL after `seconds`."""
    pid, _ = innermost(name)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            sys.exit(f"{name} did not end within {seconds:g} s.")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
