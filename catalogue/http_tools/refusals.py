"""Why declared tools are not stored."""

from collections.abc import Iterable
from dataclasses import dataclass

from connectors.http_tools.checks import InvalidTool


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFault:
    """One offending place of a submission."""

    position: int | None = None
    """Which of the tools, from 0; None for what concerns no single one, such as the source's name."""
    path: str = ""
    """JSON Pointer into the tool's ToolConfig; without a position into the submission: `/source`."""
    message: str


class ToolsRefused(Exception):
    """Nothing was stored."""

    def __init__(self, problems: Iterable[ToolFault]) -> None:
        ordered = sorted(problems, key=lambda fault: -1 if fault.position is None else fault.position)
        self.problems = list(dict.fromkeys(ordered))
        super().__init__("; ".join(_in_words(problem) for problem in self.problems))


def faults_of(invalid: InvalidTool, position: int) -> list[ToolFault]:
    """What is wrong with one tool of a submission."""
    return [
        ToolFault(position=position, path=problem.path, message=problem.message)
        for problem in invalid.problems
    ]


def _in_words(fault: ToolFault) -> str:
    place = "" if fault.position is None else f"tool {fault.position}"
    return ": ".join(filter(None, [f"{place} {fault.path}".strip(), fault.message]))
