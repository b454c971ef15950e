"""What keeps a document, or one of its operations, from being imported."""

from dataclasses import dataclass

SHOWN = 200


class UnusableDocument(ValueError):
    """The document cannot be imported at all; the message says why, and what to do."""


class NoTool(Exception):
    """An operation cannot be a tool; the message is a sentence that says why."""

    def __init__(self, reason: str, pointer: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.pointer = pointer
        """Where in the document; empty: the operation as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedOperation:
    """An operation that becomes no tool."""

    method: str
    """In capitals."""
    path: str
    operation_id: str
    """Empty where the document gives none."""
    pointer: str
    """JSON Pointer to what is in the way."""
    reason: str
    """A sentence."""


def quoted(text: object) -> str:
    """A name out of the document, short enough and harmless in a sentence."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    return f'"{shown[:SHOWN]}..."' if len(shown) > SHOWN else f'"{shown}"'
