"""Reads the history of runs without holding it in memory or in the way of new runs."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from examples.engine.runs import Run
from examples.engine.store import SELECT_RUNS, connect, run_from
from examples.engine.workflows import name_of

BATCH = 200
COUNT_RUNS = "SELECT count(*) FROM runs"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects the runs of a listing: equal to every filter, from offset on, at most limit of them."""

    filters: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    offset: int = 0

    @property
    def condition(self) -> str:
        return " AND ".join(f"{column} = ?" for column in self.filters) or "TRUE"


def stream_listing(database: Path, wanted: Wanted) -> Iterator[str]:
    """The listing as pieces of one JSON document, all read from one consistent snapshot."""
    with closing(connect(database)) as connection:
        connection.execute("BEGIN")
        yield f'{{"total": {count_runs(connection, wanted)}, "runs": ['
        separator = ""
        for batch in read_batches(connection, wanted):
            yield separator + ", ".join(json.dumps(listed(run)) for run in batch)
            separator = ", "
        yield "]}"


def count_runs(connection: sqlite3.Connection, wanted: Wanted) -> int:
    query = f"{COUNT_RUNS} WHERE {wanted.condition}"
    return int(connection.execute(query, tuple(wanted.filters.values())).fetchone()[0])


def read_batches(connection: sqlite3.Connection, wanted: Wanted) -> Iterator[list[Run]]:
    unlimited = -1
    limit = unlimited if wanted.limit is None else wanted.limit
    query = f"{SELECT_RUNS} WHERE {wanted.condition} ORDER BY seq LIMIT ? OFFSET ?"
    rows = connection.execute(query, (*wanted.filters.values(), limit, wanted.offset))
    while batch := rows.fetchmany(BATCH):
        yield [run_from(row) for row in batch]


def listed(run: Run) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "correlation_id": run.correlation_id,
        "workflow_id": run.workflow_id,
        "workflow_name": name_of(run.workflow_id),
        "idempotency_key": run.idempotency_key,
        "status": run.status,
        "input": run.input,
        "output": run.output,
        "error": run.error,
        "create_time": run.create_time,
        "start_time": run.start_time,
        "end_time": run.end_time,
    }
