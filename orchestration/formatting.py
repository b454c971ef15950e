"""The last stage: the response as text for the user (C6)."""

import html
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.conf import settings

from catalogue.describing import CHARACTERS_PER_TOKEN, estimate_tokens
from connectors.network.redaction import shorten
from orchestration.model.client import MeteredModel, ask_model
from orchestration.model.replies import Message, Reply
from orchestration.prompts import formatting_prompt
from orchestration.request_types import RequestInput

LONGEST_TEXT = 50_000  # Characters
FEWEST_TOKENS = 250  # Minimum of the response that the model sees, however long the prompt is
SHARE_OF_BEGINNING = 0.8  # Of a cut response; the rest is its end, where totals are


async def format_response(
    raw: Any,
    *,
    instructions: str,
    format_instructions: str,
    ask: Callable[[Sequence[Message]], Awaitable[Reply]] = ask_model,
) -> Reply:
    """`raw`: a JSON value or text, which is cut to fit. Raises what `ask` raises."""
    prompt_about = partial(
        formatting_prompt, instructions=instructions, format_instructions=format_instructions
    )
    taken = sum(estimate_tokens(message["content"]) for message in prompt_about(""))
    left = max(settings.CATALOGUE["model_context_tokens"] - taken, FEWEST_TOKENS)
    reply = await ask(prompt_about(cut_to_tokens(_as_text(raw), left)))
    return replace(reply, text=shorten(reply.text, LONGEST_TEXT))


def cut_to_tokens(text: str, tokens: int) -> str:
    """Cuts the middle, with a note in its place."""
    most = tokens * CHARACTERS_PER_TOKEN
    if len(text) <= most:
        return text
    note = f"\n[The response was cut here: {len(text):,} characters, of which about {most:,} are shown.]\n"
    kept = max(most - len(note), 0)
    beginning = round(kept * SHARE_OF_BEGINNING)
    return text[:beginning] + note + text[len(text) - (kept - beginning) :]


def _as_text(raw: Any) -> str:
    return raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, separators=(",", ":"))


async def format_answer(
    raw_response: dict[str, Any], asked: RequestInput, *, model: MeteredModel
) -> tuple[str, list[str]]:
    """Text and warnings. Raises StageFailed."""
    reply = await format_response(
        raw_response,
        instructions=asked.user_instructions,
        format_instructions=asked.response_format_instructions,
        ask=model.ask,
    )
    given = (raw_response, asked.user_instructions, asked.response_format_instructions)
    text, removed = remove_foreign_addresses(reply.text, given=given)
    return text, [_warning(removed)] if removed else []


def _warning(removed: int) -> str:
    what = "An address was" if removed == 1 else f"{removed} addresses were"
    return f"{what} taken out of formatted_response: the model wrote what the response does not have."


REMOVED = "[address removed]"
REST = r"""[^\s<>"'`)\]}]+"""
SCHEMES = "https?|ftp|file|wss?|data|blob|javascript|vbscript|mailto|tel|sms"
ADDRESS = re.compile(
    # Browsers accept backslashes for slashes, and these schemes without slashes.
    rf"\b[a-z][a-z0-9+.-]{{1,30}}:[/\\]{{2}}{REST}|\b(?:{SCHEMES}):{REST}|\bwww\.{REST}",
    re.IGNORECASE,
)
DESTINATION = re.compile(r"(\]\(\s*<?|^ {0,3}\[[^\]\n]+\]:\s*<?)([^)\s>]+)", re.MULTILINE)
"""Targets of Markdown links, inline and in reference definitions."""
IMAGE = re.compile(r"!(?=\[)")
PLAIN_TAGS = (
    "b|blockquote|br|caption|code|dd|div|dl|dt|em|h[1-6]|hr|i|li|ol|p|pre|s|small|span|strong|sub|sup|table|"
    "tbody|td|tfoot|th|thead|tr|u|ul"
)
TAG = re.compile(rf"<(?!/?(?:{PLAIN_TAGS})\s*/?>)(?=[a-z/!?])", re.IGNORECASE)
"""The start of any other tag, or of one with attributes."""
PUNCTUATION = ".,;:!?"


def remove_foreign_addresses(text: str, *, given: Iterable[Any]) -> tuple[str, int]:
    """The text without addresses that no value in `given` (JSON) has, and the number removed.

    A response may make the model write an address that leaks data. Images become links and all but plain
    tags become text, so that displaying the text fetches and runs nothing.
    """
    known, removed = frozenset(_addresses_in(given)), 0

    def keep_or_remove(address: str) -> str:
        nonlocal removed
        if _bare(address) in known:
            return address
        removed += 1
        return REMOVED + address[len(address.rstrip(PUNCTUATION)) :]

    text = DESTINATION.sub(lambda found: found[1] + keep_or_remove(found[2]), text)
    text = ADDRESS.sub(lambda found: keep_or_remove(found[0]), text)
    return TAG.sub("< ", IMAGE.sub("", text)), removed


def _addresses_in(value: Any) -> Iterator[str]:
    """In all strings of a JSON value, including keys."""
    left = [value]
    while left:
        match left.pop():
            case str(text):
                for address in ADDRESS.findall(text):
                    yield _bare(address)
                for _, address in DESTINATION.findall(text):
                    yield _bare(address)
            case dict(members):
                left += [*members.keys(), *members.values()]
            case list(items) | tuple(items):
                left += items


def _bare(address: str) -> str:
    """Without the punctuation of the surrounding sentence."""
    return html.unescape(address).rstrip(PUNCTUATION)
