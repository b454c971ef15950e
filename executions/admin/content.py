"""A result's content blocks on the page of an execution. Engines say in them whatever they like."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from executions.encoded import decode

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""No SVG, which may hold scripts."""
SOUNDS = frozenset(
    {"audio/wav", "audio/x-wav", "audio/mpeg", "audio/mp3", "audio/mp4", "audio/ogg", "audio/flac"}
    | {"audio/aac", "audio/webm"}
)
SHOWN_BYTES = 4 * 1024 * 1024
"""Of pictures and sounds on a page."""
SHOWN_CHARACTERS = 100_000
"""Of texts on a page."""
SHOWN_BLOCKS = 100


@dataclass(frozen=True, slots=True)
class Shown:
    """A block as the template has it: a line about it, and one of the others or none."""

    line: str
    text: str = ""
    picture: str = ""
    sound: str = ""


def show_content(blocks: list[Any], *, whole: str = "") -> SafeString:
    """`whole` is the address of all of it."""
    shown = list(_show_in_turn(blocks[:SHOWN_BLOCKS]))
    left = len(blocks) - len(shown)
    return render_to_string("executions/admin/content.html", {"blocks": shown, "left": left, "whole": whole})


def _show_in_turn(blocks: list[Any]) -> Iterator[Shown]:
    characters, size = SHOWN_CHARACTERS, SHOWN_BYTES
    for block in blocks:
        shown = _show(block if isinstance(block, dict) else {"type": "?", "value": block}, characters, size)
        characters -= len(shown.text)
        size -= len(shown.picture) + len(shown.sound)
        yield shown


def _show(block: dict[str, Any], characters: int, size: int) -> Shown:
    resource = block.get("resource")
    held: dict[str, Any] = resource if isinstance(resource, dict) else block
    encoded = held.get("blob", held.get("data"))
    if isinstance(encoded, str):
        return _show_data(_line(block, held), str(held.get("mimeType", "")), encoded, size)
    text = held.get("text")
    if not isinstance(text, str):
        text = json.dumps(block, indent=2, ensure_ascii=False)
    cut = f", the first {characters:,} of {len(text):,} characters" if len(text) > characters else ""
    return Shown(_line(block, held) + cut, text=text[:characters])


def _show_data(line: str, mime_type: str, encoded: str, size: int) -> Shown:
    if (data := decode(encoded)) is None:
        return Shown(f"{line}, not readable: its data is no base64")
    line = f"{line}, {len(data):,} bytes"
    mime_type = mime_type.lower()
    if mime_type not in PICTURES | SOUNDS:
        return Shown(line)
    address = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
    if len(address) > size:
        return Shown(f"{line}, too large for this page")
    return Shown(line, picture=address) if mime_type in PICTURES else Shown(line, sound=address)


def _line(block: dict[str, Any], held: dict[str, Any]) -> str:
    """What it is, from what it says of itself."""
    told = [block.get("type"), held.get("mimeType"), held.get("title") or held.get("name"), held.get("uri")]
    return ", ".join(str(word)[:300] for word in told if word)
