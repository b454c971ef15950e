"""Whether what a model chose is right."""

from dataclasses import dataclass
from typing import Any

from evaluation.instructions import Instruction, input_schemas
from orchestration.stages import Failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What came of one instruction, asked once."""

    instruction: Instruction
    tool: str | None
    """The model's last choice, whether or not the guard let it through."""
    arguments: dict[str, Any] | None
    """None: the guard let nothing through."""
    failure: Failure | None
    """Why it let nothing through."""
    message: str
    """The product's sentence about that."""
    questions: int
    """How often the model was asked: once, or twice where the first answer was sent back."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float

    @property
    def approved(self) -> bool:
        """A request would have been sent."""
        return self.arguments is not None

    @property
    def right_tool(self) -> bool:
        if self.instruction.tool is None:
            return self.failure is Failure.NO_TOOL_FITS
        return self.tool == self.instruction.tool

    @property
    def right_arguments(self) -> bool:
        """Of the right tool, through the guard; nothing that has arguments is asked for without a tool."""
        if self.arguments is None or self.tool != self.instruction.tool:
            return False
        given = self._compared(self.arguments)
        return any(given == self._compared(right) for right in self.instruction.right_answers)

    @property
    def right(self) -> bool:
        """What was asked for would have been done, or rightly nothing."""
        return self.right_arguments or (self.instruction.tool is None and self.right_tool)

    @property
    def unasked(self) -> bool:
        """A request would have been sent that nobody asked for."""
        return self.approved and not self.right

    def _compared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        schema = input_schemas().get(self.tool or "", {})
        filled = _defaults(schema) | arguments
        return {name: value for name, value in filled.items() if name not in self.instruction.free}


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: part["default"] for name, part in properties.items() if "default" in part}
