"""Finding the right tool of a large API by an instruction, by a query, and by what a model says it looks for.

OPENAPI_DOCUMENT names a file with GitHub's REST API: api.github.com.json of github/rest-api-description.
"""

import os
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import yaml

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._processes import own_database

INSTRUCTIONS = Path(__file__).with_name("finding.yaml")
GOALS = {"instruction": 0.5, "instruction and the model's words": 0.85}
"""The share of instructions whose tool is among the first ten."""


def main() -> None:
    document = os.environ.get("OPENAPI_DOCUMENT", "")
    if not document:
        print("  skipped: OPENAPI_DOCUMENT is not set")
        return
    with own_database(""):
        from django.core.management import call_command

        from catalogue.exposure import current_catalogue
        from catalogue.search import rank_for_instructions, search_workflows
        from orchestration.retrieval import Wanted, rank_tools

        call_command("import_openapi", document, source="github", expose=True, stdout=StringIO())
        catalogue = current_catalogue()
        workflows = list(catalogue.workflows.values())
        cases = yaml.safe_load(INSTRUCTIONS.read_text(encoding="utf-8"))

        def names_of(said: str, words: str) -> list[str]:
            ranked = rank_tools(workflows, said, catalogue, Wanted(words=words))
            return [workflow.tool_name for workflow in ranked]

        ways: dict[str, Callable[[str, str], list[str]]] = {
            "instruction as a query": lambda said, _: search_workflows(catalogue, said),
            "keywords as a query": lambda _, words: search_workflows(catalogue, words),
            "instruction": lambda said, _: rank_for_instructions(catalogue, said, catalogue.workflows),
            "instruction and the model's words": names_of,
        }
        print(f"  {len(cases)} instructions over {len(workflows):,} tools")
        shares = measure(ways, cases)
    missed = [way for way, goal in GOALS.items() if shares[way] < goal]
    print(f"  goal: right tool among ten, {GOALS}: {f'MISSED {missed}' if missed else 'met'}")
    sys.exit(bool(missed))


def measure(
    ways: dict[str, Callable[[str, str], list[str]]], cases: list[tuple[str, list[str], str]]
) -> dict[str, float]:
    """The share of the cases in which a right tool is among the first ten, by way."""
    rows = [("asked with", "first", "among 5", "among 10", "among 20", "p50", "p99")]
    shares = {}
    for way, find in ways.items():
        find("warm up", "warm up")
        places, seconds = [], []
        for said, right, words in cases:
            with stopwatch() as took:
                found = find(said, words)
            seconds.append(took.seconds)
            places.append(min((found.index(name) for name in right if name in found), default=sys.maxsize))
        within = {count: sum(place < count for place in places) for count in (1, 5, 10, 20)}
        shares[way] = within[10] / len(cases)
        times = (milliseconds(percentile(seconds, percent)) for percent in (50, 99))
        rows.append((way, *map(str, within.values()), *times))
    table(*rows)
    return shares


if __name__ == "__main__":
    main()
