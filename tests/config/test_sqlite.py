"""What the product's backend does otherwise than Django's."""

import sqlite3
import threading
from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, transaction

from catalogue.models import Revision, Source, Workflow
from executions.models import Execution, ExecutionPayload
from tests.factories import make_execution, make_source, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("config.sqlite.base"),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has another backend"),
]


def test_a_condition_with_more_values_than_parameters_finds_the_same_rows(few_parameters):
    source, others = make_source("listed"), make_source("other")
    names = [f"ü'\"\\ {number}" for number in range(few_parameters + 1)]
    rows = Workflow.objects.bulk_create(
        Workflow(source=source, upstream_id=name, name=name, tool_name=name) for name in [*names, "more"]
    )
    make_workflow(others, tool_name="elsewhere")

    found = Workflow.objects.filter(tool_name__in=names)
    assert found.count() == len(names)
    assert set(Workflow.objects.exclude(pk__in=[row.pk for row in rows]).values_list("name", flat=True)) == {
        Workflow.objects.get(source=others).name
    }
    assert (
        Workflow.objects.filter(pk__in=[*range(10**6, 10**6 + few_parameters), rows[0].pk]).get() == rows[0]
    )
    assert Source.objects.filter(workflows__in=rows).distinct().get() == source
    keys = [uuid4() for _ in names]
    execution = make_execution()
    assert Execution.objects.filter(pk__in=[*keys, execution.pk]).get() == execution
    assert ExecutionPayload.objects.filter(execution__in=[*keys, execution.pk]).exists()


def _in_a_transaction() -> None:
    with transaction.atomic():
        Revision.bump()


def _in_one_statement() -> None:
    Revision.objects.filter(pk=1).update(number=7)


class Writer:
    """In a thread and on a connection of its own, on which SQLite itself does not wait for its lock."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write, self.failure = write, list[Exception]()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 0")
            self._write()
        except DatabaseError as error:
            self.failure.append(error)
        finally:
            connection.close()


@pytest.mark.parametrize("write", [_in_a_transaction, _in_one_statement])
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_who_writes_waits_for_the_turn_of_whoever_is_writing(write, end):
    """E7: who waits for the writer is woken when it ends, and does not try again and again."""
    begun = threading.Event()

    def write_first() -> None:
        with transaction.atomic():
            begun.set()
            Revision.bump()
            # Longer than the other one, which has begun by then, needs to fail.
            assert not waiting.wait(0.2)
            if end == "rollback":
                transaction.set_rollback(True)
            if end == "close":
                connection.close()

    waiting = threading.Event()

    def write_second() -> None:
        begun.wait()
        write()
        waiting.set()

    with Writer(write_first) as first, Writer(write_second) as second:
        pass
    assert not first.failure
    assert not second.failure
    assert waiting.is_set()


def test_a_turn_whose_transaction_cannot_begin_is_given_back():
    """E7: another process may hold the lock."""
    with sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with Writer(_in_a_transaction) as refused:
            pass
        other.execute("ROLLBACK")
    assert [str(error) for error in refused.failure] == ["database is locked"]
    with Writer(_in_a_transaction) as later:
        pass
    assert not later.failure


def test_texts_that_differ_only_in_case_have_an_order():
    """So that no page repeats or misses one, also without duplicates and together with other rows."""
    for name in ("b", "B", "a", "C"):
        make_workflow(tool_name=name, category=name)
    rows = Workflow.objects.order_by()
    in_order = ["a", "B", "b", "C"]
    assert list(rows.order_by("category").values_list("category", flat=True)) == in_order
    assert list(rows.order_by("-category").values_list("category", flat=True).distinct()) == in_order[::-1]
    names = rows.values_list("tool_name", flat=True)
    assert list(names.union(names).order_by("tool_name")) == in_order


def test_an_index_still_sorts_executions_by_tool():
    """That table grows with every call."""
    by_tool = Execution.objects.order_by("tool_name", "-created_at").values("pk")[:50]
    assert "execution_by_tool" in by_tool.explain() and "TEMP B-TREE" not in by_tool.explain()
