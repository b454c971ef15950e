"""Every run ever started, in one SQLite file."""

import json
import sqlite3
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.engine.clock import now_ms
from examples.engine.progress import Report
from examples.engine.runs import Outcome, Run, RunStatus, StartRequest

SELECT_RUNS = """
SELECT run_id, correlation_id, workflow_id, idempotency_key, source, status, input, output, error, progress,
       progress_message, create_time, start_time, update_time, end_time
FROM runs
"""

# A key that is only recorded (idempotency switched off) must not collide, so the index leaves it out.
SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    seq INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    correlation_id TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    idempotency_key TEXT,
    key_is_binding INTEGER NOT NULL,
    source TEXT,
    status TEXT NOT NULL,
    input TEXT NOT NULL,
    output TEXT,
    error TEXT,
    progress REAL,
    progress_message TEXT,
    create_time INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    update_time INTEGER NOT NULL,
    end_time INTEGER
);
CREATE UNIQUE INDEX IF NOT EXISTS one_run_per_key ON runs (workflow_id, idempotency_key) WHERE key_is_binding;
CREATE INDEX IF NOT EXISTS runs_by_key ON runs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS unfinished_runs ON runs (seq) WHERE status = 'RUNNING';
"""

START = """
INSERT INTO runs (run_id, correlation_id, workflow_id, idempotency_key, key_is_binding, source, status, input,
                  create_time, start_time, update_time)
VALUES (:run_id, :correlation_id, :workflow_id, :key, :key_is_binding, :source, 'RUNNING', :input,
        :now, :now, :now)
ON CONFLICT (workflow_id, idempotency_key) WHERE key_is_binding DO NOTHING
"""

FINISH = """
UPDATE runs
SET status = :status, output = :output, error = :error, progress = :progress,
    progress_message = :progress_message, update_time = :now, end_time = :now
WHERE run_id = :run_id AND status = 'RUNNING'
"""


def connect(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    # NORMAL under WAL loses nothing when the process is killed, only when the machine loses power.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def run_from(row: sqlite3.Row) -> Run:
    columns: dict[str, Any] = dict(row)
    columns["status"] = RunStatus(columns["status"])
    columns["input"] = json.loads(columns["input"])
    columns["output"] = json.loads(columns["output"]) if columns["output"] is not None else None
    return Run(**columns)


class Store:
    """The engine's one writing connection. Each statement commits on its own, before the call returns."""

    def __init__(self, database: Path) -> None:
        self.database = database
        database.parent.mkdir(parents=True, exist_ok=True)
        self._connection = connect(database)
        self._connection.executescript(SCHEMA)

    def start(self, workflow_id: str, request: StartRequest, key_is_binding: bool) -> tuple[Run, bool]:
        """Record a new run, or find the one that already holds a binding key. True when it is new."""
        row = {
            "run_id": str(uuid.uuid4()),
            "correlation_id": f"{workflow_id}_{uuid.uuid4().hex}",
            "workflow_id": workflow_id,
            "key": request.idempotency_key,
            "key_is_binding": key_is_binding,
            "source": request.source,
            "input": json.dumps(request.input),
            "now": now_ms(),
        }
        if self._connection.execute(START, row).rowcount == 1:
            return self._only("run_id = :run_id", row), True
        return self._only(
            "workflow_id = :workflow_id AND idempotency_key = :key AND key_is_binding", row
        ), False

    def finish(self, run_id: str, outcome: Outcome, report: Report) -> bool:
        """Record how a run ended, unless it had already ended some other way. True when it counted."""
        row = {
            "run_id": run_id,
            "status": outcome.status,
            "output": json.dumps(outcome.output) if outcome.output is not None else None,
            "error": outcome.error,
            "progress": report.percent,
            "progress_message": report.message,
            "now": now_ms(),
        }
        return self._connection.execute(FINISH, row).rowcount == 1

    def find(self, run_id: str) -> Run | None:
        return self._first("run_id = :run_id", {"run_id": run_id})

    def unfinished(self) -> list[Run]:
        rows = self._connection.execute(f"{SELECT_RUNS} WHERE status = 'RUNNING' ORDER BY seq")
        return [run_from(row) for row in rows]

    def close(self) -> None:
        self._connection.close()

    def _only(self, condition: str, values: Mapping[str, Any]) -> Run:
        run = self._first(condition, values)
        if run is None:
            raise LookupError(f"There is no run where {condition}")
        return run

    def _first(self, condition: str, values: Mapping[str, Any]) -> Run | None:
        row = self._connection.execute(f"{SELECT_RUNS} WHERE {condition}", values).fetchone()
        return run_from(row) if row is not None else None
