"""Log lines say which process they come from."""

import json
import logging

import psycopg
import pytest
from django.db.utils import OperationalError

from config.logging import process_name
from tests.logs import shown_lines
from tests.processes import run_python


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/venv/bin/uvicorn config.asgi:application", "web"),
        ("manage.py serve --port 8000", "web"),
        ("/home/someone/.local/bin/workflow-catalogue serve", "web"),
        ("manage.py worker --concurrency 8", "worker"),
        ("/venv/lib/site-packages/uvicorn/__main__.py config.asgi:application", "web"),
        (
            "/venv/lib/site-packages/celery/__main__.py --app config.celery --quiet worker --pool threads",
            "worker",
        ),
        ("/venv/bin/celery -A config.celery beat", "beat"),
        ("manage.py refresh_sources engine", "refresh_sources"),
        ("manage.py", "manage"),
        ("/venv/bin/gunicorn config.wsgi", "gunicorn"),
    ],
)
def test_process_is_named_after_what_it_does(command, name):
    assert process_name(command.split()) == name


def log_of(program: str, *, log_format: str = "text") -> str:
    """Returns what a process writes that has configured its log and then executes the program."""
    begun = (
        "from config import logging as ours\n"
        "from loguru import logger\n"
        f"ours.configure_logging(level='INFO', log_format={log_format!r})\n"
    )
    return run_python(["-c", begun + program]).stderr


def test_a_json_line_is_one_flat_object_with_the_bound_values_and_the_traceback():
    """B9: what log collectors read, also of Django's and the libraries' own records."""
    program = (
        "import logging\n"
        "logger.bind(execution='e1', note='{braces}').info('Started {}', 'run')\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n    logging.getLogger('library').exception('broke <b>')\n"
        "logging.getLogger('django.security.DisallowedHost').error('bad host', exc_info=ValueError('x'))\n"
    )
    shown = log_of(program, log_format="json")
    started, broke, host = map(json.loads, shown.splitlines())
    assert (started["level"], started["message"], started["execution"]) == ("INFO", "Started run", "e1")
    assert started["note"] == "{braces}"
    assert (broke["logger"], broke["message"]) == ("library", "broke <b>")
    assert "ZeroDivisionError" in broke["exception"]
    assert "exception" not in host


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_database_that_is_away_or_not_migrated_costs_lines_and_no_tracebacks(log_format):
    program = (
        "import psycopg, sqlite3\n"
        "from django.db.utils import OperationalError\n"
        "full = sqlite3.OperationalError('disk is full')\n"
        "full.sqlite_errorname = 'SQLITE_FULL'\n"
        "for cause in (\n"
        "    psycopg.OperationalError('server gone'),\n"
        "    psycopg.errors.UndefinedTable('no relation'),\n"
        "    psycopg.errors.UndefinedColumn('column a.b does not exist'),\n"
        "    sqlite3.OperationalError('no such table: x'),\n"
        "    sqlite3.OperationalError('no such column: a.b'),\n"
        "    sqlite3.OperationalError('table a has no column named b'),\n"
        "    full,\n"
        "    psycopg.errors.DeadlockDetected('locked'),\n"
        "):\n"
        "    try:\n        raise OperationalError(str(cause)) from cause\n"
        "    except OperationalError:\n        logger.exception('The task failed')\n"
    )
    shown = log_of(program, log_format=log_format)
    gone, *not_migrated, full, locked = shown.split("The task failed")[1:]
    assert "OperationalError: server gone" in gone and "Traceback" not in gone
    reasons = ("no relation", "a.b does not", "no such table", "no such column", "no column named b")
    for entry, reason in zip(not_migrated, reasons, strict=True):
        assert reason in entry and "Traceback" not in entry
        assert "run this first: .venv/bin/python manage.py migrate" in entry
    assert "OperationalError: disk is full" in full and "Traceback" not in full
    assert "Traceback" in locked


def test_a_problem_that_recurs_is_logged_once_in_some_minutes_with_how_often_it_was_left_out():
    """A request each second would otherwise log the same outage each second."""
    program = (
        "import logging, psycopg\n"
        "from django.db.utils import OperationalError\n"
        "gone = OperationalError('server gone')\n"
        "gone.__cause__ = psycopg.OperationalError('server gone')\n"
        "def fail():\n"
        "    logger.bind(recurring=str(gone)).error('A request failed: {}', gone)\n"
        "    logging.getLogger('celery.app.trace').error('Task raised', exc_info=gone)\n"
        "    logging.getLogger('psycopg.pool').warning('error connecting in %r', 'pool-1')\n"
        "    logging.getLogger('django.request').error('Unavailable', extra={'status_code': 503})\n"
        "    logging.getLogger('django.request').error('Failed', extra={'status_code': 500})\n"
        "for _ in range(3):\n    fail()\n"
        "logger.bind(recurring='disk full').error('A request failed: disk full')\n"
        "ours.AGAIN_SECONDS = 0\n"
        "fail()\n"
    )
    shown = log_of(program)
    messages = [line.partition(": ")[2] for line in shown.splitlines() if line[0] != " "]
    assert messages == [
        "A request failed: server gone",
        "error connecting in 'pool-1'",
        *["Failed"] * 3,
        "A request failed: disk full",
        "A request failed: server gone (5 more of these were not logged)",
        "Task raised",
        "error connecting in 'pool-1' (2 more of these were not logged)",
        "Failed",
    ]


def test_a_database_that_nobody_has_migrated_costs_one_line_and_not_one_for_each_tick():
    """A worker wrote six lines a second, none of which said what to do."""
    program = (
        "import sqlite3\n"
        "from django.db.utils import OperationalError\n"
        "for tick in range(3):\n"
        "    try:\n        raise OperationalError(f'no such column: new\\nLINE {tick}')\n"
        "    except OperationalError:\n        logger.exception('The task failed')\n"
    )
    shown = log_of(program, log_format="json")
    (line,) = shown.splitlines()
    assert "run this first" in json.loads(line)["exception"]


def test_requests_that_anybody_can_send_do_not_fill_the_log():
    """Hosts, paths and methods differ with each of them; lines about others are not among those left out."""
    program = (
        "import logging\n"
        "def refuse(number):\n"
        "    security = logging.getLogger('django.security.DisallowedHost')\n"
        "    security.error(f'Invalid host: {number}', exc_info=ValueError('x'))\n"
        "    missing = {'status_code': 404}\n"
        "    logging.getLogger('django.request').warning('Not Found: %s', number, extra=missing)\n"
        "    logging.getLogger('uvicorn.error').warning('Invalid HTTP request received.')\n"
        "for number in range(1_000):\n    refuse(number)\n"
        "logging.getLogger('uvicorn.error').warning('Something else')\n"
        "logging.getLogger('django.request').error('Failed', extra={'status_code': 500})\n"
        "ours.AGAIN_SECONDS = 0\n"
        "refuse(0)\n"
    )
    shown = log_of(program)
    lines = shown.splitlines()
    assert len(lines) == 100 + 2 + 3
    assert {line.split()[2] for line in lines[:100]} == {"WARNING"}
    others = [line.partition(": ")[2] for line in lines[100:103]]
    assert others == ["Something else", "Failed", "Invalid host: 0 (2,900 more of these were not logged)"]


def test_the_schedule_says_once_that_the_broker_is_away_and_once_that_it_is_back():
    program = (
        "from types import SimpleNamespace\n"
        "from config.celery import app\n"
        "from config.beat import Scheduler\n"
        "scheduler = Scheduler(app, schedule={}, schedule_filename='/dev/null', lazy=True)\n"
        "entry = scheduler.Entry(name='poll', task='poll', app=app)\n"
        "def refuse(*_, **__):\n    raise ConnectionError('refused')\n"
        "scheduler.should_sync = lambda: False\n"
        "for send in (refuse, refuse, refuse, lambda *_, **__: SimpleNamespace(id='x')):\n"
        "    scheduler.send_task = send\n"
        "    scheduler.apply_entry(entry)\n"
    )
    shown = log_of(program)
    away, back = shown.splitlines()
    assert "ERROR" in away and "Couldn't apply scheduled task poll: refused" in away
    assert "WARNING" in back and "The broker takes the schedule's ticks again; it took none for 0 s" in back


def test_a_tick_that_finds_no_broker_costs_one_line():
    program = (
        "from celery import Celery\n"
        "from celery.beat import Scheduler\n"
        "app = Celery(broker='redis://127.0.0.1:1/0', set_as_current=False)\n"
        "app.conf.update(broker_transport_options={'max_retries': 0}, task_publish_retry=False)\n"
        "Scheduler(app, schedule={}).apply_entry(Scheduler.Entry(name='poll', task='poll', app=app))\n"
    )
    shown = log_of(program)
    (line,) = shown.splitlines()
    assert "Couldn't apply scheduled task poll" in line
    assert "refused" in line


def test_a_worker_says_in_one_line_that_another_version_sends_a_task_that_it_lacks():
    """During an upgrade, beat may be newer than workers, and sends such a task each few seconds."""
    program = (
        "from types import SimpleNamespace\n"
        "from celery.concurrency.solo import TaskPool\n"
        "from celery.worker.consumer import Consumer\n"
        "from config.celery import app\n"
        "worker = SimpleNamespace(use_eventloop=False)\n"
        "consumer = Consumer(print, app=app, pool=TaskPool(1), initial_prefetch_count=1, controller=worker)\n"
        "consumer.event_dispatcher = None\n"
        "message = SimpleNamespace(\n"
        "    headers={'id': '1', 'task': 'executions.of_the_next_version'}, body='', properties={},\n"
        "    delivery_info={}, reject_log_error=lambda *_: None,\n"
        ")\n"
        "for _ in range(3):\n"
        "    consumer.create_task_handler()(message)\n"
    )
    shown = log_of(program)
    (line,) = shown.splitlines()
    assert "WARNING" in line
    assert "has no task executions.of_the_next_version" in line and "Restart this worker" in line


def test_nobody_elses_words_begin_a_line_of_the_text_format():
    """B9: a line that looks genuine is genuine, and a traceback can be read."""
    forged = "2026-01-01 00:00:00.000 INFO    web config: Everything is fine"
    program = (
        f"forged = {forged!r}\n"
        "for separator in ('\\n', '\\r\\n', '\\x1b[2K\\r', '\\u2028', '\\x85'):\n"
        "    engine = logger.bind(engine=f'x{separator}{forged}')\n"
        "    engine.warning('It said: {}', f'broken{separator}{forged}')\n"
        "try:\n    raise ValueError(f'broken {{braces}}\\n{forged}')\n"
        "except ValueError:\n    logger.exception('Größe 東京\u3000{}', '<b>{braces}')\n"
    )
    shown = log_of(program)
    lines = shown.splitlines()
    assert not any(line.startswith(forged) for line in lines)
    entries = [line for line in lines if not line.startswith("    ")]
    assert len(entries) == 6
    assert r"It said: broken\n2026-01-01" in entries[0] and r"engine=x\n2026-01-01" in entries[0]
    assert r"\x1b[2K\r2026" in entries[2]
    assert entries[5].endswith("Größe 東京\u3000<b>{braces}")
    below = lines[lines.index(entries[5]) + 1 :]
    assert below[0] == "    Traceback (most recent call last):"
    assert below[-2:] == ["    ValueError: broken {braces}", f"    {forged}"]


@pytest.mark.parametrize(
    ("logger", "message", "told"),
    [
        (
            "celery.app.trace",
            "Task audit.seal_audit[1-2] raised unexpected: OperationalError('server gone')",
            "Task audit.seal_audit[1-2] cannot be done without the database: server gone",
        ),
        (
            "celery.utils.dispatch.signal",
            "Signal handler <function begin at 0x7f> raised: OperationalError('server gone')",
            "Signal handler <function begin at 0x7f> cannot be done without the database: server gone",
        ),
    ],
)
def test_celery_says_of_an_outage_what_all_else_says(logger, message, told):
    """O10: "raised unexpected" and a traceback stood beside it."""
    gone = OperationalError("server gone\n\tIs it running?")
    gone.__cause__ = psycopg.OperationalError("server gone")
    bug = ValueError("of ours")
    with shown_lines() as lines:
        for error in (gone, gone, bug):
            logging.getLogger(logger).error(message, exc_info=error)
    assert lines == [told, message]
