"""Tool names, made once from the workflow's name and then stable (A6.4, B8); names that look alike; and the
rules for names that people enter."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from pathlib import Path

MAX_LENGTH = 64  # Clients are stricter than MCP's own 128
SIMILAR = 0.55  # The least share of letter pairs that two similar names have in common
MAX_SIMILAR = 3

CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})  # Of Unicode: control characters, and what breaks lines

BUILT_IN_TOOLS = {  # MCP's built-in tools with their titles; no workflow may have or resemble these names
    "list_workflows": "List workflows",
    "get_workflow_info": "Get everything about a workflow",
    "execute_workflow": "Execute a workflow",
    "preflight": "Check calls",
    "get_execution_status": "Get an execution's status",
    "cancel_execution": "Cancel an execution",
    "control_execution": "Control an execution",
    "list_executions": "List your executions",
    "query_execution": "Ask a run",
    "signal_execution": "Tell a run",
    "ClearCache": "Clear the result cache",
    "report_problem": "Report a problem",
    "show_execution": "Show a run in its card",
    "answer_execution": "Answer a run's questions",
}

RESERVED = frozenset({*BUILT_IN_TOOLS, "enable", "disable"})
"""Built-in tools, and REST's addresses beside the tools'; a workflow of such a name gets its id added."""


def spellings(text: str) -> list[str]:
    """Returns the cases to search for, where a database ignores the case of ASCII letters only."""
    return list(dict.fromkeys([text, text.lower(), text.upper(), text.title(), text.capitalize()]))


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 workflow`, `1,200 workflows`; with a verb, such as `workflow is`, `plural` is needed."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int | None) -> str:
    """`first, second and 3 more`. `most`: of the names; None: all of them."""
    shown = names[:most]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def find_name_problem(name: str) -> str:
    """Why the name is invalid; empty if it is valid."""
    if name.strip() and CONTROLS.isdisjoint(map(unicodedata.category, name)):
        return ""
    return "A name must be one line of text without control characters, and not only white space."


def make_tool_name(
    *, name: str, upstream_id: str, source_name: str, taken: set[str], without_name: str = "workflow"
) -> str:
    """The first free one of: name, name_id, name_id_source, name_id_digest, then with a number."""
    plain = _sanitised(name)[:MAX_LENGTH] or without_name
    # Where the engine knows workflows by their names, the source's tells them apart.
    if plain not in taken and plain not in RESERVED:
        return plain
    with_id = _combined(plain, _sanitised(upstream_id))
    with_source = _combined(with_id, _sanitised(source_name))
    # For ids that differ only in characters that names cannot have: counting up would take ever longer.
    digest = hashlib.sha256(f"{source_name} {upstream_id}".encode()).hexdigest()[:8]
    for candidate in (with_id, with_source, _joined(with_id, digest)):
        if candidate not in taken and candidate not in RESERVED:
            return candidate
    number = 2
    while (candidate := _joined(with_source, str(number))) in taken:
        number += 1
    return candidate


def _sanitised(text: str) -> str:
    """`Kündigung prüfen!` -> `Kundigung_prufen`; empty without letters and digits."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", plain).strip("_.-")


def _combined(name: str, by: str) -> str:
    """Both parts without repetition: ids and sources often contain the name."""
    words, more = _words(name), _words(by)
    if words[-len(more) :] == more:
        return name
    if more[-len(words) :] == words:
        return by[-MAX_LENGTH:].lstrip("_.-")
    return _joined(name, by)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in re.split(r"[_.-]+", text) if word]


def _joined(start: str, end: str) -> str:
    """Both parts, cut to fit; of the second the end stays, where long ids differ."""
    end = end[-MAX_LENGTH // 2 :].lstrip("_.-")
    return f"{start[: MAX_LENGTH - len(end) - 1]}_{end}" if end else start


def find_similar_names(name: str, among: Iterable[str]) -> list[str]:
    """Likely corrections of a mistyped name, the likeliest first; its words may be in another order."""
    # Longer than any name, so not a typo.
    if len(name) > 2 * MAX_LENGTH:
        return []
    wanted = _letter_pairs(name)
    # Dice's coefficient, from 0 to 1.
    scored = (
        (2 * len(wanted & pairs) / ((len(wanted) + len(pairs)) or 1), other)
        for other in among
        for pairs in [_letter_pairs(other)]
    )
    close = nsmallest(MAX_SIMILAR, ((-score, other) for score, other in scored if score >= SIMILAR))
    return [other for _, other in close]


def _letter_pairs(name: str) -> set[str]:
    folded = name.casefold()
    return {folded[start : start + 2] for start in range(len(folded) - 1)}


# Derived from Unicode's table of confusable characters (UTS 39, Unicode 15): of those that compatibility
# decomposition leaves as they are, all whose prototype is of ASCII letters and digits.
_LOOK_ALIKES = Path(__file__).with_name("look_alikes.json").read_text(encoding="ascii")
PROTOTYPES = str.maketrans({one: plain for plain, chars in json.loads(_LOOK_ALIKES).items() for one in chars})
LETTERS = PROTOTYPES | str.maketrans({"|": "l"})
SEPARATORS = re.compile(r"[\W_]+")
BETWEEN_LETTERS = re.compile(r"(?<!\d) | (?!\d)")
DIGITS = str.maketrans({"0": "o", "1": "l"})
DISGUISES = re.compile(r"[^\x00-\x7f]|(?<=[A-Za-z])[01|](?=[A-Za-z])|(?<=[a-z])I(?=[a-z])")
"""Characters by which a name passes for another rather than the other for it."""


def latin_looks(text: str) -> str:
    """Returns what is read where letters of other alphabets look like Latin ones; empty if they show their
    alphabet, word by word."""
    words = text.split()
    read = [_latin_word(word) for word in words]
    return "" if read == words else " ".join(read)


def _latin_word(word: str) -> str:
    read = "".join(
        char if _is_latin(char) else latin.upper() if char.isupper() else latin
        for char in word
        for latin in [PROTOTYPES.get(ord(char), char) if char.isalpha() else char]
    )
    return read if all(_is_latin(char) for char in read if char.isalpha()) else word


def _is_latin(char: str) -> bool:
    return unicodedata.name(char, "").startswith("LATIN")


def looks_of(text: str) -> set[str]:
    """A name or title reduced to its visual form; texts that share a form look alike. Case, accents,
    invisible characters, separators except between digits, and look-alike letters of other scripts make no
    difference. One of the two forms takes a capital I for an l."""
    plain = text if text.isascii() else unicodedata.normalize("NFKD", text)
    read = {plain.casefold(), plain.replace("I", "l").translate(PROTOTYPES).casefold()}
    joined = {BETWEEN_LETTERS.sub("", _words_of(form.translate(LETTERS))) for form in read}
    return {form.translate(DIGITS).replace("rn", "m") for form in joined} - {""}


def _words_of(text: str) -> str:
    """Drops separators, and accents on Latin letters; in other scripts, marks make other words."""
    if text.isascii():
        return SEPARATORS.sub(" ", text).strip()
    read = " "
    for char in text:
        is_mark = unicodedata.category(char).startswith("M")
        if char.isalnum() or (is_mark and not read[-1].isascii()):
            read += char
        elif not is_mark:
            read += " "
    return " ".join(read.split())


def look_alike(one: str, other: str) -> bool:
    """Compares names of accounts like `looks_of`, but their separators count."""
    first, second = (re.split(r"([.@+_-])", name) for name in (one, other))
    return len(first) == len(second) and all(
        mine == theirs or looks_of(mine) & looks_of(theirs)
        for mine, theirs in zip(first, second, strict=True)
    )
