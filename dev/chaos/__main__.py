"""Kills the product's processes under load, and checks that nothing is lost and nothing is done twice."""

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from dev.chaos.run import Wanted, run_chaos
from dev.chaos.stacks import Restart, StackName, Unavailable, choose_name

EPILOG = """\
The last line holds the figures; every line above it that begins with LOST, DOUBLED or WRONG is a violation,
and then the exit code is 1 and the logs are kept. One seed stands for one plan of calls and kills.
"""


def main() -> None:
    wanted = _read_options()
    folder = Path(tempfile.mkdtemp(prefix="workflow-catalogue-chaos-"))
    print(f"Seed {wanted.seed} on {wanted.stack}; logs and data are in {folder}", flush=True)
    try:
        report = asyncio.run(run_chaos(wanted, folder))
    except Unavailable as error:
        sys.exit(str(error))
    for line in report.lines():
        print(line)
    if report.verdict.violations:
        sys.exit(1)
    shutil.rmtree(folder)


def _read_options() -> Wanted:
    parser = argparse.ArgumentParser(
        prog="python -m dev.chaos",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--stack", type=StackName, choices=list(StackName), help="default: what DATABASE_URL says, or sqlite")
    add("--seed", type=int, help="of the plan (default: any)")
    add("--executions", type=int, metavar="N", help="calls to make (default: 500, 100 on SQLite)")
    add("--kills", type=int, default=20, metavar="N", help="of all processes together (default: 20)")
    add("--outage", type=float, default=30.0, metavar="S", help="seconds without engines (default: 30)")
    add("--longest", type=float, default=20.0, metavar="S", help="the longest run, in seconds (default: 20)")
    add(
        "--restart-database",
        type=Restart,
        choices=list(Restart),
        nargs="?",
        const=Restart.SERVER,
        help="in mid-load: the PostgreSQL server where this user may (default), or all its connections",
    )
    add("--flush-broker", action="store_true", help="lose all of the broker's messages in mid-load, twice")
    given = parser.parse_args()
    stack = given.stack or choose_name()
    if given.restart_database and stack is StackName.SQLITE:
        parser.error("--restart-database: SQLite has no server")
    usual = 100 if stack is StackName.SQLITE else 500
    return Wanted(
        stack=stack,
        seed=secrets.randbelow(100_000) if given.seed is None else given.seed,
        executions=usual if given.executions is None else given.executions,
        kills=given.kills,
        outage=given.outage,
        longest=given.longest,
        restart=given.restart_database,
        flush=given.flush_broker,
    )


if __name__ == "__main__":
    main()
