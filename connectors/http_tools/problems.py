"""What is wrong with a declared tool."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolProblem:
    path: str
    """JSON Pointer into the ToolConfig; empty: the whole."""
    message: str
    """A sentence."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidTool(ValueError):
    """All that is wrong with it, at once."""

    def __init__(self, problems: Sequence[ToolProblem]) -> None:
        super().__init__(" ".join(map(str, problems)))
        self.problems = list(problems)
