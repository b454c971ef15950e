"""Dashboard and alerts name what is really exported, and each alert fires on what it is for."""

import asyncio
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import OperationalError, connection
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from psycopg_pool import PoolTimeout
from pydantic import SecretStr

from catalogue.access import Caller, Rate
from catalogue.connections import connector_for
from catalogue.exposure import forget_catalogue
from catalogue.models import Revision, Source
from config.monitoring import Observed, collect, forget_measures
from connectors.background import run_in_background_loop
from connectors.errors import Unreachable
from executions.models import Execution, WorkerPresence
from executions.models.lifecycle import StartRequest
from executions.refusals import TooManyCalls
from executions.runner.lease import claim_due_executions
from executions.starting import create_execution
from orchestration.language_model import MeteredModel
from orchestration.models import StageFailed
from telemetry import metrics
from telemetry.metrics import http_requests
from tests.api.clients import administrator
from tests.factories import make_discovery_run, make_execution, make_source, make_workflow
from tests.processes import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "workflow-catalogue.json"
RULES = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}
NAME = re.compile(r"\b((?:catalogue|process)_[a-z_]+)(\{[^}]*\})?")
LABEL = re.compile(r'([a-z_]+)(?:=~|!~|!=|=)"')
GROUPED = re.compile(r"by \(([a-z_, ]+)\)")
Key = tuple[str, frozenset[tuple[str, str]]]


def exported() -> dict[str, set[str]]:
    """The labels of each series, declared ones without a value included."""
    forget_measures()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(collect().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def samples() -> dict[Key, float]:
    forget_measures()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(collect().decode())
        for sample in family.samples
    }


def queries() -> Iterator[tuple[str, str]]:
    for alert, rule in RULES.items():
        yield alert, rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def be_used() -> None:
    """So that every metric has a series."""
    for provoke in PROVOKED.values():
        provoke()
    source = make_source("listed", health_state="ok", last_refreshed_at=timezone.now())
    make_execution(make_workflow(source), state="completed")
    metrics.mcp_requests.labels("tools/call", "ok")
    metrics.mcp_seconds.labels("tools/call")
    metrics.polls.labels("ok")
    metrics.engine_requests.labels("2xx")
    metrics.discovery_runs.labels("succeeded")
    metrics.log_entries.labels("ERROR")


def test_each_metric_and_label_of_the_dashboard_and_the_alerts_is_exported():
    """B9: also those of `by (...)`, of which a wrong one would make an empty picture and no error."""
    be_used()
    there = exported()
    for where, query in queries():
        used = NAME.findall(query)
        assert used, where
        for name, matchers in used:
            assert name in there, f"{where}: nothing exports {name}"
            for label in LABEL.findall(matchers):
                assert label in there[name], f"{where}: {name} has no label {label}"
        labels = set().union(*(there[name] for name, _ in used))
        for names in GROUPED.findall(query):
            for label in names.split(","):
                assert label.strip() in labels, f"{where}: no label {label}"


# How each alert is provoked; what follows from it is left to the product.


def _presence(**fields: Any) -> None:
    WorkerPresence.objects.all().delete()
    WorkerPresence.objects.create(pk=WorkerPresence.ONLY, **fields)


LONG_AGO = timedelta(minutes=10)


def _lose_the_worker() -> None:
    _presence(seen_at=timezone.now() - LONG_AGO, worker_at=timezone.now() - LONG_AGO)


def _lose_beat() -> None:
    _presence(seen_at=timezone.now() - LONG_AGO, worker_at=timezone.now())


def _fail_a_source() -> None:
    Source.objects.filter(name="failing").delete()
    make_source("failing", health_state="failing")


def _skip_workflows() -> None:
    Source.objects.filter(name="skipping").delete()
    make_discovery_run(make_source("skipping"), added=1, skipped_count=1)


def _fail_executions() -> None:
    workflow = make_workflow()
    for state in ("failed", "timed_out", "completed"):
        for _ in range(15):
            make_execution(workflow, state=state)


def _leave_one_unconfirmed() -> None:
    make_execution(state="unconfirmed")


def _let_queue() -> None:
    waiting = make_execution(state="pending", created_at=timezone.now() - LONG_AGO)
    Execution.objects.filter(pk=waiting.pk).update(admitted_at=None)


def _be_late() -> None:
    now = timezone.now()
    make_execution(state="running", admitted_at=now, next_attempt_at=now - LONG_AGO)


def _die_with_leases() -> None:
    now = timezone.now()
    for _ in range(20):
        make_execution(
            state="running",
            admitted_at=now,
            next_attempt_at=now - LONG_AGO,
            lease_holder="dead",
            lease_expires_at=now - LONG_AGO,
        )
    claim_due_executions(limit=100)


def _break_the_engine() -> None:
    source = make_source()

    async def call() -> None:
        async with connector_for(source):
            raise Unreachable("No connection.")

    for _ in range(40):
        with pytest.raises(Unreachable):
            run_in_background_loop(call())


def _call_too_often() -> None:
    tool = make_workflow().tool_name
    rate = Rate(key=f"token:{tool}", per_minute=1, at_once=1, whose="this token")
    caller = Caller(key="token:1", name="an agent", rates=(rate,))
    Revision.bump()
    forget_catalogue()

    def call() -> None:
        create_execution(StartRequest(tool_name=tool, arguments={}, caller=caller, door=Execution.Door.REST))

    call()
    for _ in range(45):
        with pytest.raises(TooManyCalls):
            call()


def _exhaust_the_pool() -> None:
    _refuse(PoolTimeout("couldn't get a connection"))


def _lose_the_database() -> None:
    _refuse(None)


def _refuse(cause: Exception | None) -> None:
    """As the pool of PostgreSQL raises it."""

    def fail(*_: Any) -> Any:
        raise OperationalError("no connection") from cause

    client = administrator()
    with connection.execute_wrapper(fail):
        for _ in range(40):
            assert client.get("/api/filters/").status_code == 503


def _wait_for_approval() -> None:
    workflow = make_workflow()
    for _ in range(21):
        make_execution(workflow, state="unapproved")


def _fail_the_model() -> None:
    for _ in range(3):
        with pytest.raises(StageFailed):
            run_in_background_loop(MeteredModel().ask([]))


def _fail_requests(path: str = "/api/sources/") -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})

    async def ask() -> None:
        for _ in range(10):
            scope = {"type": "http", "path": path, "headers": []}
            await Observed(fail)(scope, None, _drop)  # type: ignore[arg-type]

    asyncio.run(ask())


async def _drop(message: Any) -> None:
    """Nobody reads the answer."""


def _do_nothing() -> None:
    """What is provoked otherwise."""


PROVOKED: dict[str, Callable[[], None]] = {
    "CatalogueGone": _do_nothing,
    "CatalogueNotReady": _do_nothing,
    "CatalogueNoWorker": _lose_the_worker,
    "CatalogueNoTick": _lose_beat,
    "CatalogueServerErrors": _fail_requests,
    "CatalogueSourceFailing": _fail_a_source,
    "CatalogueWorkflowsNotRegistered": _skip_workflows,
    "CatalogueExecutionsFail": _fail_executions,
    "CatalogueExecutionsUnconfirmed": _leave_one_unconfirmed,
    "CatalogueQueueWaits": _let_queue,
    "CatalogueStepsLate": _be_late,
    "CatalogueLeasesLost": _die_with_leases,
    "CatalogueConnectorErrors": _break_the_engine,
    "CatalogueCallsRefused": _call_too_often,
    "CatalogueDatabaseBusy": _exhaust_the_pool,
    "CatalogueDatabaseAway": _lose_the_database,
    "CatalogueApprovalsWait": _wait_for_approval,
    "CatalogueModelFails": _fail_the_model,
}
"""By alert."""
HALF_HOUR = 30
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")


def test_each_alert_is_provoked_here():
    assert PROVOKED.keys() == RULES.keys()


@pytest.mark.parametrize("alert", PROVOKED)
def test_an_alert_fires_on_what_it_is_for_and_not_before(alert, tmp_path, settings):
    """B9: the series are what the product exports before and after it was provoked; Prometheus' own program
    decides whether the rule fires. Without it, only that they change."""
    _presence(seen_at=timezone.now(), worker_at=timezone.now())
    make_source("well", health_state="ok")
    http_requests.labels("rest", "2xx").inc()
    before = samples()
    if alert == "CatalogueNotReady":
        settings.CELERY_BROKER_URL = SecretStr("filesystem://")
        settings.DATA_DIR = tmp_path / "missing"
    PROVOKED[alert]()
    after = {} if alert == "CatalogueGone" else samples()
    assert after != before
    if shutil.which("promtool") is None:
        names = {name for name, _ in NAME.findall(RULES[alert]["expr"])}
        assert {key: v for key, v in before.items() if key[0] in names} != {
            key: v for key, v in after.items() if key[0] in names
        }
        return
    assert fires(alert, before, after, at=HALF_HOUR - 1, folder=tmp_path) is False
    assert fires(alert, before, after, at=2 * HALF_HOUR, folder=tmp_path) is True


def _never_start_a_worker() -> None:
    WorkerPresence.objects.all().delete()


def _probe_without_a_worker() -> None:
    _fail_requests("/health/ready")


def _be_ahead() -> None:
    _presence(seen_at=timezone.now() + LONG_AGO, worker_at=timezone.now() + LONG_AGO)


@needs_promtool
@pytest.mark.parametrize(
    ("provoke", "alert", "expected"),
    [
        (_never_start_a_worker, "CatalogueNoWorker", True),
        (_lose_the_worker, "CatalogueNoTick", False),
        (_be_ahead, "CatalogueNoWorker", True),
        (_probe_without_a_worker, "CatalogueServerErrors", False),
    ],
    ids=[
        "no worker ever",
        "a lost worker is one alert",
        "signs ahead of the clock",
        "probes are no requests",
    ],
)
def test_the_alert_that_a_state_raises_is_the_one_whose_advice_helps(provoke, alert, expected, tmp_path):
    _presence(seen_at=timezone.now(), worker_at=timezone.now())
    http_requests.labels("rest", "2xx").inc()
    before = samples()
    provoke()
    assert fires(alert, before, samples(), at=2 * HALF_HOUR, folder=tmp_path) is expected


def test_runs_that_fail_together_increase_a_counter_that_was_there_before():
    """Prometheus sees no increase in a series that begins with them, so that no alert fired."""
    workflow = make_workflow(make_source("bursting"))
    key = ("catalogue_executions_ended_total", frozenset({("source", "bursting"), ("outcome", "failed")}))
    assert samples()[key] == 0
    make_execution(workflow, state="failed")
    assert samples()[key] == 1


def fires(alert: str, before: dict[Key, float], after: dict[Key, float], *, at: int, folder: Path) -> bool:
    """Whether the rule fires in that minute: half an hour as before, then half an hour of what came after,
    which counters grow to."""
    now = time.time()
    series = []
    for key in sorted(before.keys() | after.keys(), key=str):
        name, labels = key
        old, new = before.get(key), after.get(key)
        if name.endswith("_timestamp_seconds"):
            # Prometheus' test begins in 1970.
            values = _clock(old, now, 0) + _clock(new, now, HALF_HOUR)
        elif name.endswith(("_total", "_bucket", "_count", "_sum")):
            grown = 0.0 if new is None else (new - (old or 0)) / HALF_HOUR
            growing = [(old or 0) + grown * minute for minute in range(1, HALF_HOUR + 1)]
            values = _constant(old) + (_constant(None) if new is None else growing)
        else:
            values = _constant(old) + _constant(new)
        shown = ",".join(f'{label}="{value}"' for label, value in sorted(labels))
        # One more, since minutes are counted from 0.
        values.append(values[-1])
        written = " ".join("_" if value is None else f"{value:.6f}" for value in values)
        series.append({"series": f"{name}{{{shown}}}", "values": written})
    probe = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [],
                "alert_rule_test": [{"eval_time": f"{at}m", "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(probe))
    outcome = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    told = outcome.stdout + outcome.stderr
    assert outcome.returncode == 0 or f'alertname="{alert}"' in told, told
    return outcome.returncode == 1


def _constant(value: float | None) -> list[float | None]:
    return [value] * HALF_HOUR


def _clock(value: float | None, now: float, first: int) -> list[float | None]:
    if value is None:
        return [None] * HALF_HOUR
    age = now - value
    # One that is renewed is as old in each minute; one that is not grows older.
    if age < 60:
        return [(first + minute) * 60 - age for minute in range(HALF_HOUR)]
    return [first * 60 - age] * HALF_HOUR
