"""Log lines say which process they come from."""

import json
import subprocess
import sys

import pytest

from config.logging import process_name
from tests.processes import ROOT


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
def test_process_is_named_after_what_it_does(command: str, name: str) -> None:
    assert process_name(command.split()) == name


def test_a_json_line_is_one_flat_object_with_the_bound_values_and_the_traceback() -> None:
    """B9: what log collectors read, also of Django's and the libraries' own records."""
    program = (
        "import logging\n"
        "from config.logging import configure_logging\n"
        "from loguru import logger\n"
        "configure_logging(level='INFO', log_format='json')\n"
        "logger.bind(execution='e1', note='{braces}').info('Started {}', 'run')\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n    logging.getLogger('library').exception('broke <b>')\n"
        "logging.getLogger('django.security.DisallowedHost').error('bad host', exc_info=ValueError('x'))\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    started, broke, host = map(json.loads, outcome.stderr.splitlines())
    assert (started["level"], started["message"], started["execution"]) == ("INFO", "Started run", "e1")
    assert started["note"] == "{braces}"
    assert (broke["logger"], broke["message"]) == ("library", "broke <b>")
    assert "ZeroDivisionError" in broke["exception"]
    assert "exception" not in host


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_database_that_is_away_or_not_migrated_costs_lines_and_no_tracebacks(log_format: str) -> None:
    program = (
        "import psycopg, sqlite3\n"
        "from config.logging import configure_logging\n"
        "from django.db.utils import OperationalError\n"
        "from loguru import logger\n"
        f"configure_logging(level='INFO', log_format={log_format!r})\n"
        "for cause in (\n"
        "    psycopg.OperationalError('server gone'),\n"
        "    psycopg.errors.UndefinedTable('no relation'),\n"
        "    sqlite3.OperationalError('no such table: x'),\n"
        "    psycopg.errors.DeadlockDetected('locked'),\n"
        "):\n"
        "    try:\n        raise OperationalError(str(cause)) from cause\n"
        "    except OperationalError:\n        logger.exception('The task failed')\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    gone, undefined, missing, locked = outcome.stderr.split("The task failed")[1:]
    assert "OperationalError: server gone" in gone and "Traceback" not in gone
    assert "no relation" in undefined and "Traceback" not in undefined
    assert "no such table" in missing and "Traceback" not in missing
    assert "Traceback" in locked


def test_a_tick_that_finds_no_broker_costs_one_line() -> None:
    program = (
        "from celery import Celery\n"
        "from celery.beat import Scheduler\n"
        "from config.logging import configure_logging\n"
        "configure_logging(level='INFO', log_format='text')\n"
        "app = Celery(broker='redis://127.0.0.1:1/0', set_as_current=False)\n"
        "app.conf.update(broker_transport_options={'max_retries': 0}, task_publish_retry=False)\n"
        "Scheduler(app, schedule={}).apply_entry(Scheduler.Entry(name='poll', task='poll', app=app))\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = outcome.stderr.splitlines()
    assert "Couldn't apply scheduled task poll" in line
    assert "refused" in line


def test_nobody_elses_words_begin_a_line_of_the_text_format() -> None:
    """B9: a line that looks genuine is genuine, and a traceback can be read."""
    forged = "2026-01-01 00:00:00.000 INFO    web config: Everything is fine"
    program = (
        "from config.logging import configure_logging\n"
        "from loguru import logger\n"
        "configure_logging(level='INFO', log_format='text')\n"
        f"forged = {forged!r}\n"
        "for separator in ('\\n', '\\r\\n', '\\x1b[2K\\r', '\\u2028', '\\x85'):\n"
        "    engine = logger.bind(engine=f'x{separator}{forged}')\n"
        "    engine.warning('It said: {}', f'broken{separator}{forged}')\n"
        "try:\n    raise ValueError(f'broken {{braces}}\\n{forged}')\n"
        "except ValueError:\n    logger.exception('Größe 東京\u3000{}', '<b>{braces}')\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = outcome.stderr.splitlines()
    assert not any(line.startswith(forged) for line in lines)
    entries = [line for line in lines if not line.startswith("    ")]
    assert len(entries) == 6
    assert r"It said: broken\n2026-01-01" in entries[0] and r"engine=x\n2026-01-01" in entries[0]
    assert r"\x1b[2K\r2026" in entries[2]
    assert entries[5].endswith("Größe 東京\u3000<b>{braces}")
    below = lines[lines.index(entries[5]) + 1 :]
    assert below[0] == "    Traceback (most recent call last):"
    assert below[-2:] == ["    ValueError: broken {braces}", f"    {forged}"]
