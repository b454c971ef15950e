"""Every list, filter, search and deep page with 5,000 workflows and 1,000,000 executions (300 ms at p95).

The data set stays for the runs of a week; a run that was interrupted goes on with the step that it was at.
"""

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from dev.benchmarks._figures import milliseconds, percentile, stopwatch
from dev.benchmarks._processes import own_database
from dev.benchmarks._workflows import fill_catalogue
from dev.benchmarks.desk import (
    DAYS,
    GOAL_SECONDS,
    LISTS,
    SIMPLEST,
    WORKFLOWS,
    fill_desk,
    fill_executions,
    settle,
)

EXECUTIONS = 1_000_000
PATTERN = 10_000
"""Executions that are made one by one; the others mix their times with the rest of them."""
COPIES = EXECUTIONS // PATTERN - 1
APART = DAYS * 86_400 / PATTERN / (COPIES + 1)
"""Seconds between the copies of one time."""
HISTORY, ASKED, CACHED, LISTED = 200_000, 200_000, 100_000, 100_000
"""Entries of the history, natural-language requests, cached results, discovery runs."""
APPROVALS, STANDING, TOKENS, USERS, ALLOWED = 100_000, 20_000, 5_000, 1_000, 20_000
UNSEALED = 5_000
"""Calls that the audit has not gathered yet."""
IN_A_SEGMENT = 200
STALE = timedelta(days=7)
REQUESTS = 5
WORDS = ("invoice", "no-such-word")
"""What is searched for: frequent, and not there."""
GOALS = {"/admin/": 0.5, "/admin/?period=30d": 0.5}
"""Of the overview, in seconds."""
DIALECTS = {
    "sqlite": {
        "true": "1",
        "false": "0",
        "id": "lower(hex(randomblob(16)))",
        "dashed": "substr({id}, 1, 8) || '-' || substr({id}, 9, 4) || '-' || substr({id}, 13, 4)"
        " || '-' || substr({id}, 17, 4) || '-' || substr({id}, 21)",
        "earlier": "strftime('%Y-%m-%d %H:%M:%f', {time}, (-n * {apart}) || ' seconds') || '000'",
        "after": "strftime('%Y-%m-%d %H:%M:%f', {time}, '+' || ({seconds}) || ' seconds') || '000'",
        "seconds": "(julianday(finished_at) - julianday(created_at)) * 86400",
        "hour": "substr(finished_at, 1, 14) || '00:00'",
        "digest": "printf('%064d', {number})",
        "numbers": "WITH RECURSIVE numbers(n) AS"
        " (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {copies})",
        "long": "hex(zeroblob(7000))",
        "indexes": "SELECT name, sql FROM sqlite_master"
        " WHERE type = 'index' AND tbl_name = %s AND sql IS NOT NULL",
        "faster": "PRAGMA cache_size = -500000; PRAGMA temp_store = MEMORY; PRAGMA synchronous = OFF",
    },
    "postgresql": {
        "true": "true",
        "false": "false",
        "id": "gen_random_uuid()",
        "dashed": "CAST({id} AS text)",
        "earlier": "{time} - n * {apart} * interval '1 second'",
        "after": "{time} + ({seconds}) * interval '1 second'",
        "seconds": "extract(epoch FROM finished_at - created_at)",
        "hour": "date_trunc('hour', finished_at, 'UTC')",
        "digest": "lpad(CAST({number} AS text), 64, '0')",
        "numbers": "WITH numbers(n) AS (SELECT generate_series(1, {copies}))",
        "long": "repeat('x', 14000)",
        "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s AND indexname NOT IN"
        " (SELECT conname FROM pg_constraint)",
        "faster": "SET work_mem = '256MB'; SET maintenance_work_mem = '512MB'; SET synchronous_commit = off",
    },
}


def say() -> dict[str, str]:
    from django.db import connection

    return DIALECTS[connection.vendor]


@contextmanager
def indexes_afterwards(table: str) -> Iterator[None]:
    """Make them of all rows at once: that takes a fraction of the time."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(say()["indexes"], [table])
        found = cursor.fetchall()
        for name, _ in found:
            cursor.execute(f'DROP INDEX "{name}"')
    yield
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # It makes no index while some rows are still to be checked.
            connection.check_constraints()
        for _, statement in found:
            cursor.execute(statement)


def copy_rows(model: Any, copies: int, **changed: str) -> None:
    """So many of each row; `changed`: SQL by column, in which `n` is the number of the copy."""
    from django.db import connection

    table = model._meta.db_table
    columns = [
        field.column
        for field in model._meta.concrete_fields
        if not field.primary_key or field.column in changed
    ]
    values = ", ".join(changed.get(name, f't."{name}"') for name in columns)
    names = ", ".join(f'"{name}"' for name in columns)
    with indexes_afterwards(table), connection.cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{table}" ({names}) {say()["numbers"].format(copies=copies)}'
            f' SELECT {values} FROM "{table}" t CROSS JOIN numbers'
        )


def earlier(column: str, seconds: float) -> str:
    return say()["earlier"].format(time=f"t.{column}", apart=seconds)


def multiply_executions() -> None:
    """By the database itself, the oldest first: a copy has one row's time, and all else of another."""
    from django.db import connection

    from executions.models import Execution, ExecutionPayload

    table = Execution._meta.db_table
    begins = ("created_at", "started_at", "admitted_at", "deadline_at")
    columns = [field.column for field in Execution._meta.concrete_fields if field.column != "id"]
    values = {name: f"m.{name}" for name in columns} | dict.fromkeys(begins, "moved")
    values["finished_at"] = (
        "CASE WHEN m.finished_at IS NULL THEN NULL ELSE"
        f" {say()['after'].format(time='moved', seconds='m.seconds')} END"
    )
    payload = ExecutionPayload._meta.db_table
    known = [field.column for field in ExecutionPayload._meta.concrete_fields]
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMP TABLE pattern AS SELECT row_number() OVER (ORDER BY created_at) - 1 AS place, *,"
            f" {say()['seconds']} AS seconds FROM {table}"
        )
        cursor.execute("CREATE UNIQUE INDEX pattern_place ON pattern (place)")
        with indexes_afterwards(table):
            cursor.execute(
                f"INSERT INTO {table} (id, {', '.join(columns)}) {say()['numbers'].format(copies=COPIES)},"
                f" times AS (SELECT n, place, {earlier('created_at', APART)} AS moved"
                " FROM pattern t CROSS JOIN numbers)"
                f" SELECT {say()['id']}, {', '.join(values[name] for name in columns)} FROM times"
                f" JOIN pattern m ON m.place = (times.place * 7919 + n * 104729) % {PATTERN} ORDER BY moved"
            )
        others = ", ".join(f"p.{name}" for name in known if name != "execution_id")
        cursor.execute(
            f"INSERT INTO {payload} (execution_id, {others.replace('p.', '')})"
            f" SELECT e.id, {others} FROM {table} e, (SELECT * FROM {payload} LIMIT 1) p"
            f" WHERE NOT EXISTS (SELECT 1 FROM {payload} o WHERE o.execution_id = e.id)"
        )
        cursor.execute("DROP TABLE pattern")


def sum_up() -> None:
    from django.db import connection

    from executions.models import Execution, HourlyUsage

    table, usage = Execution._meta.db_table, HourlyUsage._meta.db_table
    by = "workflow_id, tool_name, source_name, toolset, caller, door"
    took = f"{say()['seconds']} * 1000"
    duration_class = f"CAST(CEILING(4 * LN(CASE WHEN {took} < 1 THEN 1 ELSE {took} END) / LN(2)) AS integer)"
    with indexes_afterwards(usage), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {usage}")
        cursor.execute(
            f"INSERT INTO {usage} (hour, {by}, outcome, duration_class, calls, milliseconds,"
            " input_characters, output_characters, last_at, caller_name, is_folded)"
            f" SELECT {say()['hour']} AS hour, {by}, state, {duration_class} AS class, COUNT(*),"
            f" CAST(SUM({took}) AS bigint), 0, 0, MAX(finished_at), MAX(caller_name), {say()['true']}"
            f" FROM {table} WHERE finished_at IS NOT NULL GROUP BY {say()['hour']}, {by}, state, class"
        )


def multiply_curation() -> None:
    from catalogue.models import DiscoveryRun, HistoryEntry
    from executions.models import CachedResult
    from orchestration.models import WorkflowRequest

    def apart(model: Any, wanted: int) -> tuple[int, float]:
        copies = wanted // model.objects.count() - 1
        return copies, DAYS * 86_400 / copies

    copies, seconds = apart(HistoryEntry, HISTORY)
    copy_rows(HistoryEntry, copies, at=earlier("at", seconds))
    copies, seconds = apart(WorkflowRequest, ASKED)
    asked = earlier("created_at", seconds)
    copy_rows(WorkflowRequest, copies, id=say()["id"], created_at=asked, finished_at=asked)
    copies, seconds = apart(CachedResult, CACHED)
    used = earlier("last_used_at", seconds)
    key = say()["digest"].format(number=f"n * {CACHED} + t.id")
    copy_rows(CachedResult, copies, key=key, last_used_at=used, created_at=used)
    copies, seconds = apart(DiscoveryRun, LISTED)
    copy_rows(DiscoveryRun, copies, started_at=earlier("started_at", seconds))


def multiply_access() -> None:
    from django.contrib.auth.models import User
    from django.db import connection
    from oauth2_provider.models import Application

    from identity.models import AccessToken, AllowedApplication

    digest = say()["digest"].format(number=f"n * {TOKENS} + t.id")
    copies = TOKENS // AccessToken.objects.count() - 1
    copy_rows(AccessToken, copies, name="t.name || ' ' || n", digest=digest)
    if not User.objects.exists():
        User.objects.create_user("person", email="person@example.com")
    copy_rows(User, USERS // User.objects.count() - 1, username="t.username || ' ' || n")
    for number in range(ALLOWED // USERS):
        Application.objects.create(
            name=f"Agent {number}",
            client_type=Application.CLIENT_PUBLIC,
            authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
            redirect_uris="https://agent.example.com/callback",
        )
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {AllowedApplication._meta.db_table}"
            " (user_id, application_id, name, scopes, toolset, allowed_at)"
            f" SELECT u.id, a.id, a.name, '[\"run\"]', '', u.date_joined FROM {User._meta.db_table} u"
            f" CROSS JOIN {Application._meta.db_table} a"
        )


def add_approvals() -> None:
    from django.db import connection

    from executions.models import Approval, ApprovalDecision, Execution, StandingApproval

    table = Execution._meta.db_table
    newest = f"(SELECT * FROM {table} WHERE finished_at IS NOT NULL ORDER BY created_at DESC LIMIT {{}}) e"
    columns = {
        "execution_id": "e.id",
        "state": "CASE e.state WHEN 'completed' THEN 'approved' WHEN 'failed' THEN 'refused'"
        " ELSE 'expired' END",
        "reason": "'Its rule asks for it.'",
        "approvers_needed": "1",
        "binding": "e.arguments_hash",
        "content": "e.arguments_hash",
        "requested_at": "e.created_at",
        "expires_at": "e.deadline_at",
        "decided_at": "e.finished_at",
        "outcome": "'Ada approved it.'",
    }
    decided = {
        "approval_id": "execution_id", "user_name": "'ada'", "verdict": "'approve'", "words": "''",
        "at": "requested_at",
    }  # fmt: skip
    standing = {
        "binding": "e.arguments_hash", "workflow_id": "e.workflow_id", "tool_name": "e.tool_name",
        "caller": "e.caller", "caller_name": "e.caller_name", "granted_by": "'ada'",
        "granted_at": "e.created_at", "until": "e.deadline_at", "revoked_by": "''",
    }  # fmt: skip
    approvals = Approval._meta.db_table
    with connection.cursor() as cursor:
        for into, values, rows in (
            (approvals, columns, newest.format(APPROVALS)),
            (ApprovalDecision._meta.db_table, decided, f"{approvals} a WHERE state = 'approved'"),
            (StandingApproval._meta.db_table, standing, newest.format(STANDING)),
        ):
            cursor.execute(
                f"INSERT INTO {into} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {rows}"
            )


def add_audit() -> None:
    """Calls as a sealer gathers them, in whole segments; their digests are none, which only a check sees."""
    from django.db import connection
    from django.utils import timezone

    from audit.models import Entry, Progress, Segment
    from executions.models import Execution

    table, entries = Execution._meta.db_table, Entry._meta.db_table
    ended = Execution.objects.filter(finished_at__isnull=False).order_by("-finished_at")
    until = ended.values_list("finished_at", flat=True)[UNSEALED]
    dashed = say()["dashed"].format(id="id")
    values = {
        "at": "finished_at", "kind": "'call'", "event": "'call.ended'", "actor": "caller",
        "actor_name": "caller_name", "address": "'10.0.0.7'", "client": "'an agent 1.0'", "door": "door",
        "subject": f"'execution:' || {dashed}", "subject_name": "tool_name", "outcome": "state",
        "details": f"'{{\"execution\": \"' || {dashed} || '\"}}'", "key": f"'call:' || {dashed}",
        "segment": f"(row_number() OVER (ORDER BY finished_at) - 1) / {IN_A_SEGMENT} + 1",
    }  # fmt: skip
    sealed = {
        "number": "segment", "kind": "'call'", "sealed_at": "MAX(at)", "newest_at": "MAX(at)",
        "entries": "COUNT(*)", "root": "''", "previous": "''", "digest": "''", "seal": "''",
        "seal_key": "''", "leaves": say()["long"],
    }  # fmt: skip
    names = ", ".join(f'"{name}"' for name in values)
    with indexes_afterwards(entries), connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {entries} ({names}) SELECT {', '.join(values.values())} FROM {table}"
            " WHERE finished_at <= %s ORDER BY finished_at",
            [connection.ops.adapt_datetimefield_value(until)],
        )
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {Segment._meta.db_table} ({', '.join(sealed)})"
            f" SELECT {', '.join(sealed.values())} FROM {entries} GROUP BY segment"
        )
    now = timezone.now().isoformat()
    gathered = {"call": until.isoformat(), "began": now, "history": now}
    progress = {"gathered": json.dumps(gathered), "rechecked_at": timezone.now()}
    Progress.objects.update_or_create(pk=Progress.ONLY, defaults=progress)


STEPS: dict[str, Callable[[], object]] = {
    "workflows": lambda: fill_catalogue(WORKFLOWS),
    "a pattern of executions": lambda: fill_executions(PATTERN),
    "executions": multiply_executions,
    "hourly sums": sum_up,
    "what curators look at": fill_desk,
    "history, requests, results, listings": multiply_curation,
    "tokens, users, applications": multiply_access,
    "approvals": add_approvals,
    "the audit": add_audit,
}


def fill() -> None:
    """Each step in a transaction of its own, which says that it was done."""
    from django.db import connection, transaction

    if not may_go_on():
        begin_anew()
    with connection.cursor() as cursor:
        for statement in say()["faster"].split(";"):
            cursor.execute(statement)
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_steps (name text PRIMARY KEY, done_at float)")
        cursor.execute("SELECT name FROM bench_steps")
        done = {name for (name,) in cursor.fetchall()}
    for name, act in STEPS.items():
        if name in done:
            continue
        with stopwatch() as took, transaction.atomic():
            act()
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO bench_steps VALUES (%s, %s)", [name, time.time()])
        print(f"  made {name} in {took.seconds:,.0f} s", flush=True)
    if done != STEPS.keys():
        settle()


def may_go_on() -> bool:
    """Whether the data set was begun by these steps, and not too long ago."""
    from django.db import connection

    if "bench_steps" not in connection.introspection.table_names():
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, done_at FROM bench_steps ORDER BY done_at")
        found = cursor.fetchall()
    names = [name for name, _ in found]
    return names == list(STEPS)[: len(names)] and (
        not found or time.time() - found[0][1] < STALE.total_seconds()
    )


def begin_anew() -> None:
    """`flush` cannot: the audit lets nobody empty its tables."""
    from django.core.management import call_command
    from django.db import connection

    if connection.vendor == "sqlite":
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{connection.settings_dict['NAME']}{suffix}").unlink(missing_ok=True)
    else:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    call_command("migrate", verbosity=0)


def administrator() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    user, _ = User.objects.get_or_create(username="benchmark", is_staff=True, is_superuser=True)
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    return client


def paths(client: Any) -> Iterable[str]:
    from django.contrib import admin
    from django.urls import reverse

    import config.urls  # noqa: F401 - it registers the pages

    yield from GOALS
    yield "/admin/?period=7d"
    for model, pages in admin.site._registry.items():
        address = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        if client.get(address).status_code != 200:
            continue  # The only row of its table
        yield from filters(client, address, most=20 if model._meta.model_name == "execution" else 3)
        if pages.search_fields:
            yield from (f"{address}?{urlencode({'q': words})}" for words in WORDS)
        yield from deep_pages(client, address)
    yield f"{reverse('admin:catalogue_workflow_changelist')}?q=billing_*"
    for name in (*LISTS, "approvals", "standing-approvals", "audit"):
        yield f"/api/{name}/"
    yield "/api/workflows/?search=invoice"
    for name in ("history", "audit"):
        yield from (f"/api/{name}/?search={words}" for words in WORDS)
    yield from orders()
    yield from searches(reverse("admin:executions_execution_changelist"))


def filters(client: Any, address: str, *, most: int) -> Iterable[str]:
    """The list, and with each filter by so many of its values."""
    yield address
    for one in client.get(address).context_data["cl"].filter_specs:
        for value in list(dict(getattr(one, "lookup_choices", [])))[:most]:
            name = getattr(one, "parameter_name", None) or one.lookup_kwarg
            yield f"{address}?{urlencode({name: value})}"


def deep_pages(client: Any, address: str) -> Iterable[str]:
    """The last page, and what it leads on to."""
    last = f"{address}?p={shown(client, address).paginator.num_pages}"
    yield last
    for _ in range(2):
        if not (older := getattr(shown(client, last), "older", "")):
            return
        yield address + older
        last = f"{address}{older}&p={shown(client, address + older).paginator.num_pages}"
        yield last


def shown(client: Any, address: str) -> Any:
    return client.get(address).context_data["cl"]


def orders() -> Iterable[str]:
    """Of REST: each order of the long lists, their last pages by number, and pages by position."""
    from catalogue.models import DiscoveryRun, HistoryEntry
    from executions.models import Approval, Execution
    from orchestration.models import WorkflowRequest

    for name, model, by, others in (
        ("executions", Execution, "created_at", ("finished_at", "state", "tool", "source")),
        ("history", HistoryEntry, "at", ()),
        ("discovery-runs", DiscoveryRun, "started_at", ()),
        ("approvals", Approval, "requested_at", ("expires_at", "decided_at")),
        ("workflow-requests", WorkflowRequest, "created_at", ("finished_at", "tool", "prompt_tokens")),
    ):
        for order in (by, *others):
            yield f"/api/{name}/?ordering={order}"
            yield f"/api/{name}/?ordering=-{order}&page=200"
        yield f"/api/{name}/?page=200"
        last = model._default_manager.order_by(by)[100]
        cursor = base64.urlsafe_b64encode(f"{getattr(last, by).isoformat()} {last.pk}".encode()).decode()
        yield f"/api/{name}/?{urlencode({'cursor': cursor})}"


def searches(executions: str) -> Iterable[str]:
    """And the filters of REST: for what is frequent, rare, and not there."""
    from catalogue.models import Workflow
    from executions.models import Execution

    rare = Execution.objects.filter(state="running").order_by("created_at").values_list("pk", flat=True)[0]
    for words in ("token:7", "invoice failed", rare):
        yield f"{executions}?{urlencode({'q': words})}"
    yield f"{executions}?workflow__id__exact={Workflow.objects.order_by('-pk')[0].pk}"
    for query in (
        "state=failed", "state=failed&state=timed_out", "tool=nothing", "caller=token:7", "door=rest",
        "source=nothing", "queued=true", "cached=true", "search=invoice", "search=no-such-word",
        "state=running&ordering=finished_at", "caller=nobody&ordering=-finished_at",
        f"search={rare}", "created_before=2000-01-01T00:00:00Z",
    ):  # fmt: skip
        yield f"/api/executions/?{query}"


@dataclass
class Taken:
    queries: int
    seconds: list[float]
    cpu: float
    """The least, as of the statements: other work on the machine makes neither shorter."""
    statements: list[float]


def measure(client: Any, path: str) -> Taken:
    from django.db import connection

    statements: list[float] = []

    def note(execute: Any, *statement: Any) -> Any:
        with stopwatch() as took:
            answer = execute(*statement)
        statements.append(took.seconds)
        return answer

    taken = Taken(0, [], float("inf"), [])
    # The first answer finds nothing remembered.
    for _ in range(REQUESTS + 1):
        statements.clear()
        before = time.process_time()
        with connection.execute_wrapper(note), stopwatch() as took:
            answer = client.get(path)
        assert answer.status_code == 200, (path, answer.status_code)
        taken.seconds.append(took.seconds)
        taken.cpu = min(taken.cpu, time.process_time() - before)
        if len(statements) != taken.queries:
            taken.queries, taken.statements = len(statements), list(statements)
        taken.statements = list(map(min, taken.statements, statements))
    del taken.seconds[0]
    return taken


def main() -> None:
    with ExitStack() as stack:
        database = stack.enter_context(own_database(os.environ.get("DATABASE_URL", ""), kept_as="million"))
        fill()
        client = administrator()
        print(f"  {database}; {WORKFLOWS:,} workflows, {EXECUTIONS:,} executions")
        header = ("GET", "queries", "longest", "all of them", "CPU", "p50", "p95", "p50, times simplest")
        print("  {:<82} {:>7} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7}".format(*header))
        simplest, slow = measure(client, SIMPLEST), []
        for path in (SIMPLEST, *paths(client)):
            took = measure(client, path)
            p50, p95 = percentile(took.seconds, 50), percentile(took.seconds, 95)
            times = (max(took.statements), sum(took.statements), took.cpu, p50, p95)
            told = " ".join(f"{milliseconds(seconds):>11}" for seconds in times)
            ratio = p50 / percentile(simplest.seconds, 50)
            print(f"  {path[:82]:<82} {took.queries:>7} {told} {ratio:>7.1f}", flush=True)
            if p95 > GOALS.get(path, GOAL_SECONDS):
                slow.append(path)
    print(
        f"  goal: p95 under {milliseconds(GOAL_SECONDS)}: {'MISSED by ' + ', '.join(slow) if slow else 'met'}"
    )
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
