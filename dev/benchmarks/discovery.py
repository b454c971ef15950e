"""Discovery of 1,000 workflows over HTTP against a bare GET of the same bytes (goal: under 5 s)."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from dev.benchmarks._figures import best_of, milliseconds, stopwatch, table
from dev.benchmarks._processes import own_database

COUNT = 1_000
GOAL_SECONDS = 5.0
PATH = "/api/v1/service/workflows"


def workflow(number: int, edition: int) -> dict[str, Any]:
    """As large as a typical one: eight parameters, two tags, a paragraph."""
    parameters = {
        f"field_{index}": {
            "type": "string",
            "description": f"Field {index} of order {number}.",
            "maxLength": 200,
        }
        for index in range(8)
    }
    return {
        "id": f"{number:05d}",
        "name": f"Close the books of unit {number}",
        "description": f"Edition {edition}. Collects the month's postings of unit {number} and reports. " * 3,
        "category": "finance",
        "tags": ["finance", f"unit-{number % 20}"],
        "inputSchema": {"type": "object", "properties": parameters, "required": ["field_0", "field_1"]},
        "metadata": {"queue": f"q{number % 7}", "owner": "accounting"},
    }


class _Listing:
    body = b""


@contextmanager
def engine(listing: _Listing) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # Headers and body are two packets: the second would wait 40 ms

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(listing.body)))
            self.end_headers()
            self.wfile.write(listing.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def bare_get(url: str) -> float:
    with httpx2.Client(trust_env=False) as client:
        return best_of(20, lambda: json.loads(client.get(url).content))


def measure(base_url: str, listing: _Listing) -> list[tuple[str, float, int]]:
    """Name, seconds and queries of each kind of listing."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from catalogue.actions.sources import create_source
    from catalogue.discovery import refresh_source

    source = create_source(name="bench", kind="simplified", config={"base_url": base_url}, credentials={})
    results = []
    for name, edition, counted in (
        ("first", 1, "added"),
        ("unchanged", 1, "unchanged"),
        ("all changed", 2, "updated"),
    ):
        listing.body = json.dumps([workflow(number, edition) for number in range(COUNT)]).encode()
        with CaptureQueriesContext(connection) as queries, stopwatch() as took:
            run = refresh_source(source)
        assert getattr(run, counted) == COUNT, run.error or vars(run)
        results.append((name, took.seconds, len(queries)))
    return results


def main() -> None:
    listing = _Listing()
    with own_database(os.environ.get("DATABASE_URL", "")) as database, engine(listing) as base_url:
        listing.body = json.dumps([workflow(number, 1) for number in range(COUNT)]).encode()
        bare = bare_get(base_url + PATH)
        results = measure(base_url, listing)
        print(f"  {database}, {COUNT:,} workflows, {len(listing.body):,} bytes")
        table(
            ("listing", "time", "queries", "times a bare GET"),
            ("bare GET + json.loads", milliseconds(bare), "", "1.0"),
            *(
                (name, milliseconds(took), str(queries), f"{took / bare:.1f}")
                for name, took, queries in results
            ),
        )
    slowest = max(took for _, took, _ in results)
    print(f"  goal: {slowest:.2f} s of {GOAL_SECONDS:g} s {'met' if slowest < GOAL_SECONDS else 'MISSED'}")
    sys.exit(slowest >= GOAL_SECONDS)


if __name__ == "__main__":
    main()
