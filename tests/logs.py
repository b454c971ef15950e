"""Log lines as tests read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loguru import logger


@contextmanager
def shown_lines(level: str = "WARNING") -> Iterator[list[str]]:
    """What the log shows within minutes: of the entries about a problem that recurs, only the first."""
    lines, problems = list[str](), set[str]()

    def show(line: Any) -> None:
        problem = line.record["extra"].get("recurring")
        if problem is None or problem not in problems:
            lines.append(line.record["message"])
        problems.add(problem)

    sink = logger.add(show, level=level)
    try:
        yield lines
    finally:
        logger.remove(sink)


def with_fields(record: Any) -> str:
    """Level, message, bound values as key=value, and the stack trace; a template for loguru."""
    fields = (key for key in record["extra"] if key not in ("process", "recurring"))
    return "{level} {message}" + "".join(f" {key}={{extra[{key}]}}" for key in fields) + "\n{exception}"
