"""Calls of a good caller while 20 attackers guess passwords or access tokens, against calls without them."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from dev.benchmarks._figures import milliseconds, percentile, table
from dev.benchmarks._processes import McpServer, catalogue_server, own_database, status_engine
from dev.benchmarks._status_engine import AT_ONCE
from dev.benchmarks.calls import Figures, burst, prepare_workflows

GOAL = 0.20
"""The most that attackers may cost, of the calls a second."""
ATTACKERS = 20
ATTACKS = {
    "passwords, one address": ("sign-in", 1),
    "passwords, 20 addresses": ("sign-in", 20),
    "the login's page": ("page", 1),
    "tokens, one address": ("token", 1),
    "tokens, 20 addresses": ("token", 20),
}
CLIENTS, REQUESTS, WARM_UP, ROUNDS = 8, 150, 80, 3


@contextmanager
def attacked(server: McpServer, kind: str, addresses: int, answers: Counter[str]) -> Iterator[None]:
    base_url = server.url.removesuffix("/mcp")
    command = [
        sys.executable,
        "-m",
        "dev.benchmarks._attackers",
        base_url,
        kind,
        str(ATTACKERS),
        str(addresses),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attackers:
        assert attackers.stdout is not None
        attackers.stdout.readline()
        try:
            yield
        finally:
            attackers.terminate()
            answers.update(attackers.stdout.read().split())


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.environ["CATALOGUE_TRUSTED_PROXIES"] = "127.0.0.1"  # For attackers of several addresses
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", "")))
        os.sched_setaffinity(0, cores[-1:])
        prepare_workflows(stack.enter_context(status_engine(folder)))
        os.sched_setaffinity(0, cores)
        server = stack.enter_context(catalogue_server(folder))
        from django.contrib.auth.models import User

        User.objects.create_superuser("admin0", password="right")
        for thread in server.process.threads():
            os.sched_setaffinity(thread.id, cores[:1])
        os.sched_setaffinity(0, cores[-1:])
        print(
            f"  {database}, one core for the web process, {ATTACKERS} attackers; medians of {ROUNDS} rounds"
        )
        burst(server, AT_ONCE, clients=CLIENTS, requests=WARM_UP)
        found = {}
        for name, (kind, addresses) in ATTACKS.items():
            answers: Counter[str] = Counter()
            alone, beside = [], []
            for _ in range(ROUNDS):
                alone.append(burst(server, AT_ONCE, clients=CLIENTS, requests=REQUESTS))
                with attacked(server, kind, addresses, answers):
                    beside.append(burst(server, AT_ONCE, clients=CLIENTS, requests=REQUESTS))
            found[name] = (in_the_middle(alone), in_the_middle(beside), answers)
    table(
        ("", "alone", "attacked", "loss", "p99 alone", "attacked", "attackers got"),
        *(
            (
                name,
                f"{alone.per_second:,.0f}/s",
                f"{beside.per_second:,.0f}/s",
                f"{loss(alone, beside):.0%}",
                milliseconds(percentile(alone.latencies, 99)),
                milliseconds(percentile(beside.latencies, 99)),
                ", ".join(f"{number} x {code}" for code, number in answers.most_common(3)),
            )
            for name, (alone, beside, answers) in found.items()
        ),
    )
    missed = [name for name, (alone, beside, _) in found.items() if loss(alone, beside) >= GOAL]
    print("\n".join(f"  MISSED: {name}" for name in missed) or f"  goal: met, less than {GOAL:.0%}")
    sys.exit(bool(missed))


def in_the_middle(rounds: list[Figures]) -> Figures:
    middle = median(found.per_second for found in rounds)
    return next(found for found in rounds if found.per_second == middle)


def loss(alone: Figures, beside: Figures) -> float:
    return 1 - beside.per_second / alone.per_second


if __name__ == "__main__":
    main()
