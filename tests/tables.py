"""Tests that walk a table in one set-up: every row that fails is reported under its name.

`subtests.test(name)` is enough where a row writes nothing, or only rows that no other looks at.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import transaction


@contextmanager
def table_row(subtests: pytest.Subtests, name: str) -> Iterator[None]:
    """One row, in a savepoint: the next one finds the database as this one did."""
    with subtests.test(name), transaction.atomic():
        yield
        transaction.set_rollback(True)
