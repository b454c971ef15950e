"""Runs the benchmarks, each in a process and a data folder of its own: `python -m dev.benchmarks --help`."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def names() -> list[str]:
    """Every file in benchmarks/ that can be run."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))


def title(name: str) -> str:
    """The first line of the file, which says what it measures."""
    return (FOLDER / f"{name}.py").read_text().split("\n", 1)[0].strip('"')


def run(name: str) -> bool:
    print(f"\n=== {name}: {title(name)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="workflow-catalogue-bench-") as folder:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CATALOGUE_")}
        environment |= {
            "CATALOGUE_DATA_DIR": folder,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "LOG_LEVEL": "ERROR",
        }
        command = [sys.executable, "-m", f"dev.benchmarks.{name}"]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (default: all)")
    parser.add_argument("--list", action="store_true", help="say which there are")
    options = parser.parse_args()
    if options.list:
        for name in names():
            print(f"{name:<20} {title(name)}")
        return
    if unknown := set(options.names) - set(names()):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; --list shows them")
    failed = [name for name in options.names or names() if not run(name)]
    if failed:
        sys.exit(f"\nFailed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
