"""Twenty thousand workflows: discovery, the first list of tools, a change of one, queries and memory."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable

from dev.benchmarks._figures import milliseconds, percentile, stopwatch, table
from dev.benchmarks._processes import own_database
from dev.benchmarks._workflows import realistic_definitions
from dev.benchmarks.discovery import _Listing, engine

COUNT = 20_000
TOOLSETS = 50
CHANGES = 20
GOALS = {"discovery": 20.0, "change to tools/list, p99": 1.0, "query, p99": 0.05}
"""In seconds."""
GOAL_MEGABYTES = 600
QUERIES = ("approve invoice", "escalate supplier contract", "I need to archive the orders of a customer")
PARAMETERS = {
    f"field_{index}": {
        "type": "string",
        "description": f"Field {index} of the order, as the unit's books have it, in capital letters only.",
        "maxLength": 200,
    }
    for index in range(14)
}


def listed() -> bytes:
    schema = {"type": "object", "properties": PARAMETERS, "required": ["field_0", "field_1"]}
    workflows = [
        {
            "id": f"{number:05d}",
            "name": f"{definition['name']} {number}",
            "description": definition["description"],
            "tags": definition["tags"],
            "inputSchema": schema,
        }
        for number, definition in enumerate(realistic_definitions(COUNT))
    ]
    return json.dumps(workflows).encode()


def main() -> None:
    listing = _Listing()
    with own_database(os.environ.get("DATABASE_URL", "")) as database, engine(listing) as base_url:
        listing.body = listed()
        seconds = measure(base_url)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"  {database}, {COUNT:,} workflows, {TOOLSETS} toolsets, {len(listing.body):,} bytes listed")
        table(("", "time"), *((name, milliseconds(took)) for name, took in seconds.items()))
    missed = [name for name, goal in GOALS.items() if seconds[name] >= goal]
    missed += ["memory"] if megabytes >= GOAL_MEGABYTES else []
    print(f"  memory of this process: {megabytes:.0f} MB of {GOAL_MEGABYTES}")
    print(f"  goal: {GOALS}: {f'MISSED {missed}' if missed else 'met'}")
    sys.exit(bool(missed))


def measure(base_url: str) -> dict[str, float]:
    from access.callers import Scope
    from catalogue import exposure
    from catalogue.curation import enable_workflows, override_workflow
    from catalogue.models import Toolset, ToolsetRule, Workflow
    from catalogue.search import search_workflows
    from catalogue.sources import create_source
    from mcp_bridge.tool_lists import ToolLists, View

    config = {"base_url": base_url, "max_response_bytes": 100_000_000}
    source = create_source(name="large", kind="simplified", config=config, credentials={})
    # By a process of its own, as a worker does, so that the memory of this one is that of a web process.
    command = [sys.executable, "manage.py", "refresh_sources", source.name]
    with stopwatch() as discovery:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert source.workflows.count() == COUNT
    enable_workflows(Workflow.objects.all())
    for number in range(TOOLSETS):
        toolset = Toolset.objects.create(slug=f"unit-{number}", title=f"Unit {number}")
        ToolsetRule.objects.create(toolset=toolset, action="include", subject="name", pattern=f"*{number}")
    lists, view = ToolLists({"name": "bench"}), View(None, frozenset(Scope), "2026-07-28")

    def list_now() -> None:
        exposure.confirmed_catalogue()
        lists.current(view).page_json(None)

    def timed(act: Callable[[], object]) -> float:
        with stopwatch() as took:
            act()
        return took.seconds

    first, changes, queries = timed(list_now), [], []
    first_query = timed(lambda: search_workflows(exposure.confirmed_catalogue(), "warm up"))
    for number in range(CHANGES):
        workflow = Workflow.objects.all()[number * 900]
        override_workflow(workflow, title_override=f"Edition {number}")
        changes.append(timed(list_now))
        catalogue = exposure.confirmed_catalogue()
        queries += [timed(lambda c=catalogue, q=query: search_workflows(c, q)) for query in QUERIES]
    return {
        "discovery": discovery.seconds,
        "first tools/list": first,
        "first query": first_query,
        "change to tools/list, p50": percentile(changes, 50),
        "change to tools/list, p99": percentile(changes, 99),
        "query, p50": percentile(queries, 50),
        "query, p99": percentile(queries, 99),
    }


if __name__ == "__main__":
    main()
