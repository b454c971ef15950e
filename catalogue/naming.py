"""Tool names: made once from the workflow's name, then stable (A6.4, B8)."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from heapq import nsmallest

from catalogue.confusables import PROTOTYPES

MAX_LENGTH = 64
"""Clients are stricter than MCP's own 128."""
SIMILAR = 0.55
"""The share of letter pairs that two names have in common from which one may be meant by the other."""
MOST_SIMILAR = 3
LETTERS = PROTOTYPES | str.maketrans({"|": "l"})
DIGITS = str.maketrans({"0": "o", "1": "l"})
"""Those that look like letters."""

BUILT_IN_TOOLS = {
    "list_workflows": "List workflows",
    "get_workflow_info": "Get everything about a workflow",
    "execute_workflow": "Execute a workflow",
    "get_execution_status": "Get an execution's status",
    "cancel_execution": "Cancel an execution",
    "list_executions": "List your executions",
    "query_execution": "Ask a run",
    "signal_execution": "Tell a run",
    "ClearCache": "Clear the result cache",
}
"""MCP's built-in tools with their titles, which nothing else may be called or be mistaken for."""

RESERVED = frozenset({*BUILT_IN_TOOLS, "enable", "disable"})
"""Names that stand for something else: MCP's built-in tools, and REST's addresses beside the tools'.

A workflow of such a name gets its id added.
"""


def make_tool_name(*, name: str, upstream_id: str, source_name: str, taken: set[str]) -> str:
    """The first free one of: name, name_id, name_id_source, name_id_digest, then with a number."""
    plain = _sanitised(name)[:MAX_LENGTH] or "workflow"
    # Where the engine knows workflows by their names, the source's tells them apart.
    with_id = _told_apart(plain, _sanitised(upstream_id))
    with_source = _told_apart(with_id, _sanitised(source_name))
    # For ids that differ only in what a name cannot hold: counting up would take ever longer.
    digest = hashlib.sha256(f"{source_name} {upstream_id}".encode()).hexdigest()[:8]
    for candidate in (plain, with_id, with_source, _joined(with_id, digest)):
        if candidate not in taken and candidate not in RESERVED:
            return candidate
    number = 2
    while (candidate := _joined(with_source, str(number))) in taken:
        number += 1
    return candidate


def _sanitised(text: str) -> str:
    """`Kündigung prüfen!` -> `Kundigung_prufen`; empty where no letter or digit can be kept."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", plain).strip("_.-")


def _told_apart(name: str, by: str) -> str:
    """Both, without saying anything twice: ids and sources often repeat the name."""
    words, more = _words(name), _words(by)
    if words[-len(more) :] == more:
        return name
    if more[-len(words) :] == words:
        return by[-MAX_LENGTH:].lstrip("_.-")
    return _joined(name, by)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in re.split(r"[_.-]+", text) if word]


def _joined(start: str, end: str) -> str:
    """Both parts, cut where they do not fit; of the second the end stays, where long ids differ."""
    end = end[-MAX_LENGTH // 2 :].lstrip("_.-")
    return f"{start[: MAX_LENGTH - len(end) - 1]}_{end}" if end else start


def find_similar_names(name: str, among: Iterable[str]) -> list[str]:
    """What whoever wrote `name` may have meant, the likeliest first; its words may be in another order."""
    # Longer than any name that there is: nobody's slip of the pen.
    if len(name) > 2 * MAX_LENGTH:
        return []
    wanted = _letter_pairs(name)
    scored = ((_likeness(wanted, _letter_pairs(other)), other) for other in among)
    close = nsmallest(MOST_SIMILAR, ((-score, other) for score, other in scored if score >= SIMILAR))
    return [other for _, other in close]


def _letter_pairs(name: str) -> set[str]:
    folded = name.casefold()
    return {folded[start : start + 2] for start in range(len(folded) - 1)}


def _likeness(some: set[str], others: set[str]) -> float:
    """From 0 to 1 (Dice's coefficient)."""
    return 2 * len(some & others) / ((len(some) + len(others)) or 1)


def looks_of(text: str) -> set[str]:
    """What is left of a name or title for a hasty reader; two texts that share one of them look alike.

    Case, accents, invisible characters and separators make no difference, unless they are between digits, and
    neither do letters of other scripts that look like ours. Of the two looks one takes a capital I for an l.
    """
    plain = _without_marks(text)
    looks = {_squeezed(plain.casefold()), _squeezed(plain.replace("I", "l").translate(PROTOTYPES).casefold())}
    return looks - {""}


def _without_marks(text: str) -> str:
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


def _squeezed(text: str) -> str:
    words = re.sub(r"[\W_]+", " ", text.translate(LETTERS))
    return re.sub(r"(?<!\d) | (?!\d)", "", words).translate(DIGITS)
