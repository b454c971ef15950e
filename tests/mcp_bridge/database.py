"""The tests' own look at the database, from asynchronous code."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from catalogue.database import run_in_database

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_database(unit: Callable[Parameters, Result]) -> Callable[Parameters, Awaitable[Result]]:
    """The unit for `await`, on the product's threads: those give their connections back to the pool."""
    return partial(run_in_database, unit)
