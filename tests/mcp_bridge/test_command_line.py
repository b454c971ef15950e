"""What `manage.py` says when a command cannot go on."""

import os
import pty
import signal
import subprocess
from contextlib import suppress
from functools import partial
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection

from tests.executions.engines import Gate, replies

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.mark.parametrize(
    ("command", "name"),
    [("mcp_stdio", "missing/db.sqlite3"), ("list_tools", "missing/db.sqlite3"), ("list_tools", "notes.txt")],
)
def test_a_database_that_cannot_be_used_is_told_in_a_sentence(stdio_server, tmp_path, command, name):
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


def test_a_database_server_that_does_not_answer_is_told_at_once_without_its_password(stdio_server):
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


def test_ctrl_c_ends_a_command_without_a_traceback(stdio_server, wire_engine, long_workflow):
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
def test_a_command_that_could_not_store_its_change_does_not_say_that_it_did(words, monkeypatch):
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


@pytest.mark.parametrize("ended", ["COMPLETED", "FAILED"])
def test_the_texts_of_engines_do_not_command_a_terminal(stdio_server, wire_engine, long_workflow, ended):
    """E6: they could rewrite what is on the screen, change its title or fill the clipboard."""
    text = "first\tline\nsecond \x1b]0;owned\x07 \x9b31m \u202eevil"
    result = {"output": text} if ended == "COMPLETED" else {"error": text}
    wire_engine.on_status = replies(200, {"status": ended} | result)
    command = [stdio_server.command, stdio_server.args[0], "call_tool", "report"]
    terminal, its_end = pty.openpty()
    with subprocess.Popen(command, env=stdio_server.env, stdout=its_end, stderr=its_end) as process:
        os.close(its_end)
        shown = b""
        with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as screen:
            while piece := screen.read(65_536):
                shown += piece
    told = shown.decode()
    assert process.returncode == (ended == "FAILED")
    assert "first" in told and "second" in told and "owned" in told
    assert not any(odd in told for odd in ("\x1b]", "\x07", "\x9b", "\u202e"))


def test_the_result_of_an_engine_is_written_to_a_pipe_as_it_is(stdio_server, wire_engine, long_workflow):
    wire_engine.on_status = replies(200, {"status": "COMPLETED", "output": "\x9b31m \u202eevil"})
    command = [stdio_server.command, stdio_server.args[0], "call_tool", "report"]
    written = subprocess.run(command, env=stdio_server.env, capture_output=True, check=True, timeout=60)
    assert "\x9b31m \u202eevil" in written.stdout.decode()
