"""What the product's backend does otherwise than Django's."""

from typing import Any

import pytest
from django.db import connection

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("config.sqlite.base"),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has another backend"),
]


@pytest.mark.parametrize(
    ("query", "parameters", "row"),
    [
        ("SELECT '100%%', %s", ["a"], ("100%", "a")),
        ("SELECT '%%s', %s", ["%s"], ("%s", "%s")),
        ("SELECT %(second)s, %(first)s", {"first": 1, "second": 2}, (2, 1)),
        ("SELECT '100%'", None, ("100%",)),
        (f"SELECT '{'x' * 9_000}', '%%', %s", ["a"], ("x" * 9_000, "%", "a")),
    ],
    ids=["literal", "escaped", "named", "none", "long"],
)
def test_percent_signs_and_parameters_are_what_django_says_they_are(
    query: str, parameters: Any, row: tuple[Any, ...]
) -> None:
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute(query, parameters)
            assert cursor.fetchone() == row
