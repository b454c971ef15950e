"""The program of a process that answers questions about one result, for `executions.asking`. It is plain
Python and imports nothing of the product, so that it starts at once.

It reads lines of JSON: its bounds, the output, the content blocks, and then questions. For each of these it
writes a line: `answer`, or `shape` (and `first`: how many items would fit), or `problem`."""

import contextlib
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable
from io import BufferedReader, FileIO
from itertools import islice
from typing import Any, BinaryIO

import jmespath
from jmespath.exceptions import JMESPathError

MAX_PROBLEM = 300  # Characters, of a message that may repeat values
LOOKED_AT = 100  # Items of each array, evenly chosen
MAX_NAMES = 20_000  # Of the fields of several objects, before no further object is looked at
SHOWN = 40  # Characters of a name or sample
LEVELS = (
    (0, 5),
    (1, 5),
    (1, 30),
    (2, 30),
    (3, 30),
    (4, 30),
    (5, 30),
)  # Depth and fields
KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def shape_of(value: Any, *, most: int) -> Any:
    """Describes it in `most` bytes of JSON, at least 800: of objects {"object": fields}, of arrays {"array":
    length, "items": shape}, of others a text with samples. What it leaves out is counted in `more_fields`, or
    ends in an ellipsis."""
    found: Any = None
    for depth, fields in LEVELS:
        if _size(shape := _describe([value], depth, fields), most) is None:
            break
        found = shape
    return found


def _describe(values: list[Any], depth: int, fields: int) -> Any:
    kinds: dict[str, list[Any]] = {}
    for value in values:
        kinds.setdefault(KINDS.get(type(value), "null"), []).append(value)
    shapes = [_describe_kind(kind, alike, depth, fields) for kind, alike in kinds.items()]
    return shapes[0] if len(shapes) == 1 else {"either": shapes}


def _describe_kind(kind: str, values: list[Any], depth: int, fields: int) -> Any:
    if kind == "object":
        return _describe_objects(values, depth, fields)
    if kind == "array":
        items = _choose([item for value in values for item in _choose(value)])
        shape = {"items": _describe(items, depth - 1, fields)} if depth and items else {}
        return {"array": _span(map(len, values)), **shape}
    told = f"string of {_span(map(len, values))} characters" if kind == "string" else kind
    if not depth or kind not in ("string", "number"):
        return told
    return f"{told}, such as {' or '.join(dict.fromkeys(map(_cut, map(str, values[:2]))))}"


def _describe_objects(values: list[dict[str, Any]], depth: int, fields: int) -> dict[str, Any]:
    names: dict[str, None] = {}
    for value in values:
        names.update(dict.fromkeys(value))
        if len(names) > MAX_NAMES:
            break
    if not depth:
        return {"object": {}, "more_fields": len(names)}
    shown = {
        _cut(name): _describe([one[name] for one in values if name in one], depth - 1, fields)
        for name in islice(names, fields)
    }
    more = len(names) - len(shown)
    return {"object": shown, **({"more_fields": more} if more else {})}


def _choose(items: list[Any]) -> list[Any]:
    return items[:: -(-len(items) // LOOKED_AT) or 1]


def _span(lengths: Iterable[int]) -> Any:
    known = sorted({*lengths})
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _cut(text: str, most: int = SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _size(value: Any, most: int) -> int | None:
    """Returns its bytes as JSON; None if they are more. It stops there: with references to one value,
    expressions make what no memory could hold as JSON."""
    size = 0
    for part in ENCODER.iterencode(value):
        size += len(part.encode("utf-8", "surrogatepass"))
        if size > most:
            return None
    return size


def read_result(output: Any, content: Iterable[Any], *, block: int | None, notes: list[Any]) -> Any:
    """Returns what is asked: the output, or of texts their JSON, else {"lines": [{"number", "text"}]}.
    `block`: only this one of the content blocks, of which `notes` are none."""
    blocks = [one for one in content if one.get("_meta") not in notes]
    if not blocks or (block is None and output is not None and not isinstance(output, str)):
        return _read_text(output) if isinstance(output, str) else output
    chosen = blocks if block is None else [blocks[block]]
    return _read_text("\n\n".join(map(_words_of, chosen)))


def _words_of(block: dict[str, Any]) -> str:
    held = block.get("resource")
    part: dict[str, Any] = held if isinstance(held, dict) else block
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('mimeType') or block.get('type')}: no text]"


def _read_text(text: str) -> Any:
    if text[:1_000].lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return {"lines": [{"number": number, "text": line} for number, line in enumerate(lines)]}


def answer(asked: Any, query: str, *, most: int) -> dict[str, Any]:
    try:
        value = jmespath.search(query, asked)
        if _size(value, most) is not None:
            return {"answer": value}
        shaped = {"shape": shape_of(value, most=most)}
        return shaped | {"first": _count_fitting(value, most)} if isinstance(value, list) else shaped
    except (MemoryError, RecursionError):
        return {"problem": "it needs too much memory, or is nested too deep."}
    except JMESPathError as error:
        return {"problem": _cut(str(error), MAX_PROBLEM)}
    except Exception as error:  # noqa: BLE001 - the library lets pass what Python raises
        return {"problem": _cut(f"{type(error).__name__}: {error}", MAX_PROBLEM)}


def _count_fitting(items: list[Any], most: int) -> int:
    left = most - len("[]")
    for number, item in enumerate(items):
        if (size := _size(item, left)) is None:
            return number
        left -= size + len(", ")
    return len(items)


def main(source: BinaryIO, target: BinaryIO) -> None:
    os.nice(5)  # The web process, which has other callers, comes first
    told = json.loads(source.readline())
    with contextlib.suppress(ValueError, OSError):  # Another limit is lower, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (told["memory"], told["memory"]))
    asked = problem = None
    try:
        output, content = source.readline(), source.readline()
        asked = read_result(
            json.loads(output), json.loads(content) or (), block=told["block"], notes=told["notes"]
        )
        del output, content
    except IndexError:
        problem = {"problem": "There is no such content block."}
    except (MemoryError, RecursionError, ValueError):
        problem = {"problem": "The result is too large or nested too deep to be asked."}
    gc.freeze()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # Ends the process, whatever it does
    for line in source:
        query = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, told["seconds"])
        found = problem or answer(asked, query, most=told["most"])
        # Expressions can make half surrogates, which nothing can send
        target.write(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        target.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    gc.disable()  # It would look through the whole result again and again
    main(BufferedReader(FileIO(0), 2**20), sys.stdout.buffer)
