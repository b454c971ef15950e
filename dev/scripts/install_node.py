"""Install what a folder's package-lock.json lists into its node_modules, at no cost when it is there already.

    python3 dev/scripts/install_node.py FOLDER

Ends with an error when npm is missing or cannot install; only tests need these packages, and they say so.
Uses the standard library only: it runs before anything is installed.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from pathlib import Path

from install import fail, log_for, run, timed  # type: ignore[import-not-found]

INSTALL = ("npm", "ci", "--no-progress", "--loglevel=error")
IMPATIENT = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000")
"""Offline, retries only cost time."""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    stamp = folder / "node_modules" / ".installed-from-lock"
    wanted = f"{platform.system()} {platform.machine()} {lock_digest(folder)}\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    if shutil.which("npm") is None:
        sys.exit(
            f"npm is missing, so the tests that need {folder} are skipped. It comes with Node.js; "
            "on Debian or Ubuntu: apt-get install npm"
        )
    packages = json.loads((folder / "package-lock.json").read_bytes()).get("packages", {})
    name = "node_modules"
    with timed(name, f"about {len(packages)} packages of {folder}/package-lock.json"), log_for(name) as log:
        install(folder, log)
        stamp.write_text(wanted, encoding="utf-8")


def lock_digest(folder: Path) -> str:
    texts = [(folder / name).read_bytes() for name in ("package.json", "package-lock.json", ".npmrc")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def install(folder: Path, log: Path) -> None:
    """`npm ci` removes an unfinished installation, and its stamp with it, before it begins."""
    patience = () if os.environ.get("CI") == "true" else IMPATIENT
    if run([*INSTALL, *patience], log, folder=folder):
        fail(
            log,
            f"npm could not install what {folder}/package-lock.json lists; tests that need it are skipped.",
            "Check the network and `npm config list`, and run the same command again.",
        )


if __name__ == "__main__":
    main()
