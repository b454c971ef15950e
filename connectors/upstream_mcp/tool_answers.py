"""What a tool answered, as data: structured content, or JSON as text."""

from typing import Any

from connectors.errors import InvalidAnswer, NotFound, Rejected
from connectors.formats.json import UnreadableJSON, parse_json, parse_listing
from connectors.network.redaction import printable, shorten, words_in

WORDS_LIMIT = 500
DEPTH = 250
"""As in listings over HTTP: a schema that is too deep costs its own workflow, not the listing."""
UNKNOWN = {"not_found", "notfound", "404"}
"""Codes, in lower case, by which a tool says that it does not know the workflow or the run."""


def read_answer(result: dict[str, Any], *, tool: str) -> Any:
    """The data in a result of tools/call.

    Raises Rejected or NotFound for a result that is an error, InvalidAnswer for one without data.
    """
    if result.get("isError"):
        raise _refusal(result, tool)
    if (structured := result.get("structuredContent")) is not None:
        return _unwrapped(structured)
    texts = _texts(result)
    try:
        # Some SDKs write each item of a list into a block of its own.
        answers = [parse_listing(text.encode("utf-8", "replace"), max_depth=DEPTH) for text in texts]
    except UnreadableJSON as error:
        raise InvalidAnswer(f"The tool {tool} answered with text that is not JSON: {error}") from None
    if not answers:
        raise InvalidAnswer(f"The tool {tool} answered with neither structured content nor text.")
    return answers[0] if len(answers) == 1 else answers


def _unwrapped(structured: Any) -> Any:
    """Some SDKs put whatever a function returns under `result`."""
    if isinstance(structured, dict) and list(structured) == ["result"]:
        return structured["result"]
    return structured


def _refusal(result: dict[str, Any], tool: str) -> Rejected | NotFound:
    texts = _texts(result)
    said: Any = result.get("structuredContent")
    if said is None and len(texts) == 1:
        said = _as_json(texts[0])
    words = words_in(said) or printable(" ".join(texts)) or "it gave no reason"
    refused = NotFound if _is_unknown(said) else Rejected
    return refused(f"The tool {tool} answered with an error: {shorten(words, WORDS_LIMIT)}")


def _is_unknown(said: Any) -> bool:
    """Whether `code` or `status`, of the answer or of its `error`, says so."""
    if not isinstance(said, dict):
        return False
    codes = (said.get(key) for key in ("code", "status"))
    return any(str(code).lower() in UNKNOWN for code in codes) or _is_unknown(said.get("error"))


def _texts(result: dict[str, Any]) -> list[str]:
    blocks = result.get("content") or []
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return [text for text in texts if isinstance(text, str)]


def _as_json(text: str) -> Any:
    try:
        return parse_json(text.encode("utf-8", "replace"))
    except UnreadableJSON:
        return None
