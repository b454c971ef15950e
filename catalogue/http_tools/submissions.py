"""Submissions of tools as JSON: one, a list, or a list with what to do with it."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalogue.http_tools.refusals import ToolFault, ToolsRefused
from connectors.formats.json import UnreadableJSON, parse_json
from connectors.formats.yaml import UnusableText, read_document
from connectors.http_tools.tool import ToolConfig

MOST_TOOLS = 1_000
SHOWN_STEP = 100
MOST_BYTES = 4_194_304
"""Of a text; of YAML, which takes longer to read, a quarter of it."""


class ToolSubmission(BaseModel):
    """Tools, and what to do with them."""

    # Without hide_input_in_errors a mistyped secret would be quoted by the error about it.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    tools: list[ToolConfig] = Field(min_length=1, max_length=MOST_TOOLS)
    source: str | None = Field(default=None, min_length=1, max_length=64)
    """A source of HTTP tools that they belong to, or the name of a new one. Left out: their addresses and
    authentication decide, and where no source fits, one named after the host is added."""
    expose: bool = True
    """Whether agents see new tools at once, filters permitting."""
    dry_run: bool = False
    """Store nothing, tell what would change."""


BESIDE = [[name] for name in ToolSubmission.model_fields if name != "tools"]
"""Where a tool's own field would be, were these its fields."""


def read_text(content: bytes) -> Any:
    """What a text in JSON or YAML says. Raises ToolsRefused."""
    if len(content) > MOST_BYTES:
        raise ToolsRefused([ToolFault(message=f"The text is larger than {MOST_BYTES:,} bytes.")])
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            return parse_json(content)
        document = read_document(content)
    except (UnreadableJSON, UnusableText) as error:
        raise ToolsRefused([ToolFault(message=str(error))]) from None
    if document.problems:
        raise ToolsRefused(ToolFault(message=str(problem)) for problem in document.problems)
    return document.value


def read_submission(raw: Any) -> ToolSubmission:
    """Raises ToolsRefused with all that is wrong."""
    return _validated(raw if _is_whole(raw) else {"tools": raw if isinstance(raw, list) else [raw]})


def read_tool(raw: Any) -> ToolConfig:
    """The one tool that stands there. Raises ToolsRefused with all that is wrong."""
    return _validated({"tools": [raw]}).tools[0]


def place_of(fault: ToolFault, raw: Any) -> str:
    """JSON Pointer to the fault in what was submitted."""
    if fault.position is None:
        return fault.path if _is_whole(raw) else ""
    if isinstance(raw, list):
        return f"/{fault.position}{fault.path}"
    return f"/tools/{fault.position}{fault.path}" if _is_whole(raw) else fault.path


def name_of(fault: ToolFault, raw: Any) -> str:
    """What the faulty one of several tools is called; empty where there is one, or it has no name."""
    tools = raw["tools"] if _is_whole(raw) else raw
    tool = tools[fault.position] if isinstance(tools, list) and fault.position is not None else None
    name = tool.get("name") if isinstance(tool, dict) else None
    return name[:SHOWN_STEP] if isinstance(name, str) and name.isprintable() else ""


def _is_whole(raw: Any) -> bool:
    return isinstance(raw, dict) and "tools" in raw


def _validated(written: Any) -> ToolSubmission:
    try:
        return ToolSubmission.model_validate(written)
    except ValidationError as error:
        raise ToolsRefused(_faults(error, written)) from None


def _faults(error: ValidationError, written: Any) -> Iterator[ToolFault]:
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        steps = list(_steps(problem["loc"], written, is_absent=problem["type"] == "missing"))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden" and steps[2:] in BESIDE:
            message = f'This is said beside the tools: {{"{steps[2]}": ..., "tools": [...]}}.'
        if len(steps) > 1 and steps[0] == "tools":
            yield ToolFault(position=int(steps[1]), path=_pointer(steps[2:]), message=message)
        else:
            yield ToolFault(path=_pointer(steps), message=message)


def _steps(loc: tuple[str | int, ...], written: Any, *, is_absent: bool) -> Iterator[str]:
    """Those that lead through what was written; Pydantic names the alternatives of unions in between."""
    for position, part in enumerate(loc):
        in_list = isinstance(written, list) and isinstance(part, int)
        if in_list or (isinstance(written, dict) and part in written):
            written = written[part]
            yield str(part)
        elif is_absent and position == len(loc) - 1:
            yield str(part)


def _pointer(steps: list[str]) -> str:
    return "".join(f"/{step[:SHOWN_STEP].replace('~', '~0').replace('/', '~1')}" for step in steps)
