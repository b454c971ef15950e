"""A backup taken while agents call, and what a restored product still has."""

import asyncio
import json
import os
import sqlite3
from contextlib import closing

import pytest

from tests.e2e.product import environment
from tests.e2e.test_clients import client_of_2026
from tests.processes import run_python

pytestmark = pytest.mark.e2e


def manage(variables: dict[str, str], *words: str) -> str:
    outcome = run_python(["manage.py", *words], environment=environment(variables))
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.skipif(
    os.environ.get("DATABASE_URL", "").startswith("postgres"), reason="for the embedded database"
)
async def test_nothing_that_was_confirmed_before_a_backup_is_missing_after_its_restoration(product, tmp_path):
    """E10: web and worker go on writing meanwhile."""
    confirmed: list[str] = []
    stop, answered = asyncio.Event(), asyncio.Semaphore(0)

    async def call() -> None:
        async with client_of_2026(product) as client:
            while not stop.is_set():
                text = f"Call number {len(confirmed)} of {id(client)}"
                result = await client.call_tool("text_statistics", {"text": text})
                assert not result.is_error, result
                confirmed.append(text)
                answered.release()

    async def back_up() -> int:
        for _ in range(20):
            await answered.acquire()
        before = len(confirmed)
        await asyncio.to_thread(manage, product.variables, "backup", str(tmp_path / "b.tar"))
        at_its_end = len(confirmed)
        while len(confirmed) < at_its_end + 20:
            await answered.acquire()
        stop.set()
        return before

    *_, count = await asyncio.gather(*(call() for _ in range(3)), back_up())
    elsewhere = {"CATALOGUE_DATA_DIR": str(tmp_path / "elsewhere")}
    manage(elsewhere, "restore", str(tmp_path / "b.tar"))
    with closing(sqlite3.connect(tmp_path / "elsewhere" / "catalogue.sqlite3")) as database:
        rows = database.execute(
            "SELECT p.input FROM executions_execution e JOIN executions_executionpayload p "
            "ON p.execution_id = e.id WHERE e.state = 'completed' AND p.output IS NOT NULL"
        ).fetchall()
    kept = {json.loads(given).get("text") for (given,) in rows}
    assert set(confirmed[:count]) - kept == set()
    assert confirmed[-1] not in kept, "calls went on after the backup"
    assert "The audit holds." in manage(elsewhere, "verify_audit")
