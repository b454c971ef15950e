"""`python -m dev.scripts.mutants`: make a seeded sample of faults and print the share that the tests notice.

A mutant is killed when a test fails or hangs. Only the tests that execute its line are run. Nothing is
changed in the tree itself; mutants live in copies of it. Exits with 1 below the wanted share.
"""

import argparse
import json
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from .copies import Copy
from .operators import Mutant
from .sampling import PARTS, place, sample
from .selection import Contexts

FIRST = 25
"""Tests of different modules that most mutants do not survive."""


@dataclass(frozen=True, slots=True)
class Outcome:
    mutant: Mutant
    tests: int
    """How many execute its line."""
    killer: str | None
    """The test that failed, or what else did; None for a survivor."""


def main() -> None:
    options = read_options()
    tree = options.tree.resolve()
    mutants = choose_mutants(options, tree)
    if options.show:
        print(*mutants, sep="\n")
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(tree, Path(folder, str(number)), options.expression) for number in range(options.jobs)]
        contexts = options.contexts or Path(folder, "contexts")
        if not contexts.exists():
            print("Running all tests, to see which lines each executes ...", flush=True)
            copies[0].record_contexts(contexts, processes=options.jobs)
        known = Contexts(contexts, tree, {mutant.path for mutant in mutants})
        chosen = [(mutant, known.tests_of(mutant)) for mutant in mutants]
        # Fails immediately, and not after an hour, if pytest cannot run here.
        copies[0].failing([tests[0] for _, tests in chosen if tests])
        outcomes = try_all(chosen, copies, cap=options.cap)
        unfit = copies[0].failing([outcome.killer for outcome in outcomes if outcome.killer])
    sys.exit(report(outcomes, unfit, threshold=options.threshold))


def choose_mutants(options: argparse.Namespace, tree: Path) -> list[Mutant]:
    if options.load is None:
        mutants = sample(tree, options.parts, size=options.size, seed=options.seed)
    else:
        saved = json.loads(options.load.read_text(encoding="utf-8"))
        found = [place(Mutant(**fields), tree) for fields in saved]
        mutants = [mutant for mutant in found if mutant is not None]
        print(f"{len(mutants)} of {len(saved)} mutants apply to {tree}.", flush=True)
    if options.save is not None:
        saved = [asdict(mutant) for mutant in mutants]
        options.save.write_text(json.dumps(saved, indent=1), encoding="utf-8")
    return mutants


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dev.scripts.mutants", description=__doc__)
    add = parser.add_argument
    add("--tree", type=Path, default=Path(), metavar="DIR", help="the checkout to try (default: this one)")
    add("--parts", nargs="+", default=PARTS, metavar="PART", help="what to change, without .py")
    add("--size", type=int, default=80, help="how many mutants (default: 80)")
    add("--seed", type=int, default=1, help="which mutants (default: 1)")
    add("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    add("--cap", type=int, default=400, help="tests before a survivor gets all others (default: 400)")
    add("--threshold", type=float, default=85, help="the share to be killed, in percent (default: 85)")
    add("--expression", default="not engines and not e2e", help="pytest's -m (default: %(default)s)")
    add("--contexts", type=Path, metavar="FILE", help="coverage of this very code by test; made if missing")
    add("--save", type=Path, metavar="FILE", help="write the mutants as JSON")
    add("--load", type=Path, metavar="FILE", help="try these mutants, where the tree has their lines")
    add("--show", action="store_true", help="print the mutants and stop")
    return parser.parse_args()


def try_all(
    chosen: Sequence[tuple[Mutant, Sequence[str]]], copies: Sequence[Copy], *, cap: int
) -> list[Outcome]:
    free = queue.SimpleQueue[Copy]()
    for copy in copies:
        free.put(copy)

    def attempt(mutant: Mutant, tests: Sequence[str]) -> Outcome:
        copy, began = free.get(), time.monotonic()
        try:
            batches = tests[:FIRST], tests[FIRST:cap], tests[cap:]
            killers = (copy.find_killer(mutant, batch) for batch in batches if batch)
            killer = next(filter(None, killers), None)
        finally:
            free.put(copy)
        fate = f"killed by {killer}" if killer else "SURVIVED"
        took = f"{len(tests)} tests, {time.monotonic() - began:.0f} s"
        print(f"{mutant.path}:{mutant.line} {mutant.operator}, {took}: {fate}", flush=True)
        return Outcome(mutant, len(tests), killer)

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(attempt, *zip(*chosen, strict=True)))


def report(outcomes: Sequence[Outcome], unfit: Sequence[str], *, threshold: float) -> int:
    """Prints the outcome and returns the exit code. Tests that also fail without a mutant have killed
    nothing."""
    survivors = [outcome for outcome in outcomes if outcome.killer is None]
    for outcome in survivors:
        why = f"survived {outcome.tests} tests" if outcome.tests else "no test executes it"
        print(f"\n{outcome.mutant}\n  {why}")
    doubtful = [outcome for outcome in outcomes if outcome.killer in unfit]
    for outcome in doubtful:
        print(f"\n{outcome.mutant}\n  not counted: {outcome.killer} fails without it too")
    counted = len(outcomes) - len(doubtful)
    killed = counted - len(survivors)
    share = 100 * killed / counted if counted else 0.0
    print(f"\n{killed} of {counted} mutants killed: {share:.1f} % ({threshold:g} % wanted).")
    return 0 if share >= threshold and not doubtful else 1


if __name__ == "__main__":
    main()
