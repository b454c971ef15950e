"""Log lines as tests read them."""

from typing import Any


def with_fields(record: Any) -> str:
    """Level, message, bound values as key=value, and the stack trace; a template for loguru."""
    fields = (key for key in record["extra"] if key not in ("process", "recurring"))
    return "{level} {message}" + "".join(f" {key}={{extra[{key}]}}" for key in fields) + "\n{exception}"
