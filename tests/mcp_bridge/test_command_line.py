"""What `manage.py` says when a command cannot go on."""

import signal
import subprocess
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from mcp.client.stdio import StdioServerParameters

from catalogue.models import Workflow
from tests.executions.engines import Gate, WireEngine

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize(
    ("command", "name"),
    [("mcp_stdio", "missing/db.sqlite3"), ("list_tools", "missing/db.sqlite3"), ("list_tools", "notes.txt")],
)
def test_a_database_that_cannot_be_used_is_told_in_a_sentence(
    stdio_server: StdioServerParameters, tmp_path: Path, command: str, name: str
):
    """B5, E8: on standard error, with what helps, and no traceback."""
    (tmp_path / "notes.txt").write_text("This is no database. " * 100)
    ended = subprocess.run(
        [stdio_server.command, stdio_server.args[0], command],
        env=(stdio_server.env or {}) | {"DATABASE_URL": f"sqlite:///{tmp_path}/{name}"},
        capture_output=True,
        input=b"",
        timeout=60,
    )
    told = ended.stderr.decode()
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert "The database cannot be used: " in told and "manage.py migrate" in told
    assert f"{tmp_path}/{name} the right file" in told and "Traceback" not in told


def test_a_database_server_that_does_not_answer_is_told_at_once_without_its_password(
    stdio_server: StdioServerParameters,
):
    """B5, E6, E8: a desktop client does not wait for as long as a pool would try."""
    url = "postgres://catalogue:not-to-be-shown@127.0.0.1:9/catalogue"
    ended = subprocess.run(
        [stdio_server.command, *stdio_server.args],
        env=(stdio_server.env or {}) | {"DATABASE_URL": url},
        capture_output=True,
        input=b"",
        timeout=60,
    )
    told = ended.stderr.decode()
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert "The database cannot be used: " in told and "Connection refused" in told
    assert "is its server running?" in told
    assert "psycopg.pool" not in told and "not-to-be-shown" not in told


def test_ctrl_c_ends_a_command_without_a_traceback(
    stdio_server: StdioServerParameters, wire_engine: WireEngine, long_workflow: Workflow
):
    """B5"""
    wire_engine.on_start = gate = Gate(wire_engine.on_start)
    process = subprocess.Popen(
        [stdio_server.command, stdio_server.args[0], "call_tool", "report"],
        env=stdio_server.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Shells have it ignored by what they start in the background, such as these tests.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        gate.wait_for_request()
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=20)
    finally:
        gate.open()
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in told


@pytest.mark.parametrize(
    "words",
    [
        ["create_mcp_token", "new"],
        ["rotate_mcp_token", "old"],
        ["revoke_mcp_token", "old"],
        ["add_source", "erp", "simplified", "--config", '{"base_url": "https://erp.example.com"}'],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_could_not_store_its_change_does_not_say_that_it_did(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script took a token for one that works, and an operator a token for revoked."""
    call_command("create_mcp_token", "old", stdout=StringIO())

    def full() -> None:
        raise OperationalError("database or disk is full")

    output = StringIO()
    monkeypatch.setattr(connection, "_commit", full)
    with pytest.raises(OperationalError):
        call_command(*words, stdout=output)
    monkeypatch.undo()
    assert output.getvalue() == ""
