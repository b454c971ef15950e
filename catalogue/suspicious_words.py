"""Words by which a description, or any other text of an engine, may try to command the agent that reads it.

The list is short and errs on the side of asking: what it finds is held for a curator, never refused.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}?"
        r"\b(?:previous|prior|above|earlier|preceding|system|instructions?|prompts?|rules?|guidelines?)\b",
        r"\b(?:do not|don['\u2019]t|never|without)\b.{0,20}?"
        r"\b(?:tell|mention|inform|notif|reveal|show|report|ask|disclos|warn)\w*",
        r"\b(?:send|forward|post|upload|transmit|e-?mail|bcc|leak|exfiltrate|copy)\b.{0,60}?\b(?:to|at)\b",
        r"\b(?:before|after|prior to|instead of|when(?:ever)?|each time)\b.{0,20}?"
        r"\b(?:call|us|invok|run|execut)(?:e|es|ing|s)?\b",
        r"\b(?:you|the (?:agent|assistant|model))\s+(?:must|should|shall|have to|has to|need to|are to)\b",
        r"\b(?:always|must|first)\s+(?:call|use|include|pass|send|read|fetch|run|execute|provide|add)\b",
        r"</?\s*(?:important|critical|system|instructions?|secret|admin|assistant|user|prompt|tool)\b"
        r"[^>]{0,80}>",
        r"\b(?:system prompt|new instructions|hidden instruction|jailbreak|developer mode)\b",
        r"\b(?:(?:api|private)[ _-]?keys?|passwords?|credentials?|access[ _-]?tokens?|secrets?|id_rsa)\b",
        r"(?:~|\$HOME|%USERPROFILE%)[/\\]|\.ssh\b|\.env\b|\bmcp\.json\b|/etc/passwd",
        r"\b(?:https?|ftp|data|javascript|file)\s?:[^\s<>\"']{1,200}|\bwww\.[^\s<>\"']{1,200}",
        r"[A-Za-z0-9+/]{100,}={0,2}",
    )
)
LONGEST_EXCERPT = 80
UNSEEN = frozenset({"Cf", "Co", "Cn", "Cs"})
"""Categories of characters that people do not see: zero width, direction, tags, private use."""


def find_suspicious(value: Any) -> dict[str, None]:
    """What of the value's texts may be meant for the agent, as excerpts in their order."""
    found: dict[str, None] = {}
    for text in texts_in(value):
        if unseen := sorted({f"U+{ord(char):04X}" for char in text if unicodedata.category(char) in UNSEEN}):
            found[f"unseen characters ({', '.join(unseen[:5])})"] = None
        readable = unicodedata.normalize("NFKC", text)
        readable = "".join(char for char in readable if unicodedata.category(char) not in UNSEEN)
        for pattern in PATTERNS:
            for match in pattern.finditer(readable):
                found[_excerpt(match[0])] = None
    return found


def show_unseen(text: str) -> str:
    """The text with a name in the place of each character that people do not see."""
    if text.isprintable():
        return text
    return "".join(f"[U+{ord(char):04X}]" if unicodedata.category(char) in UNSEEN else char for char in text)


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value, the names in its objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from texts_in(item)


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    shown = line if len(line) <= LONGEST_EXCERPT else f"{line[:LONGEST_EXCERPT]}..."
    return f"\u201c{shown}\u201d"
