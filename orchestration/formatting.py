"""A tool's response in words (C6.1 to C6.4)."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.conf import settings

from catalogue.token_estimates import CHARACTERS_PER_TOKEN, estimate_tokens
from connectors.network.redaction import shorten
from orchestration.language_model.client import Message, Reply, ask_model
from orchestration.prompts import formatting_prompt

LONGEST_TEXT = 50_000
"""Characters of the text that is handed on."""
FEWEST_TOKENS = 250
"""Of the response that the model sees, however long the rest of the prompt is."""
SHARE_OF_BEGINNING = 0.8
"""Of what is shown when it does not fit; the rest is its end, where totals are and lists close."""


async def format_response(
    raw: Any,
    *,
    instructions: str,
    format_instructions: str,
    ask: Callable[[Sequence[Message]], Awaitable[Reply]] = ask_model,
) -> Reply:
    """`raw`: a JSON value or text, of which the model sees as much as fits. Raises what `ask` raises."""
    prompt_about = partial(
        formatting_prompt, instructions=instructions, format_instructions=format_instructions
    )
    taken = sum(estimate_tokens(message["content"]) for message in prompt_about(""))
    left = max(settings.CATALOGUE["model_context_tokens"] - taken, FEWEST_TOKENS)
    reply = await ask(prompt_about(cut_to_tokens(_as_text(raw), left)))
    return replace(reply, text=shorten(reply.text, LONGEST_TEXT))


def cut_to_tokens(text: str, tokens: int) -> str:
    """The text, or its beginning and end with a line between them that says how much is missing."""
    most = tokens * CHARACTERS_PER_TOKEN
    if len(text) <= most:
        return text
    note = f"\n[The response was cut here: {len(text):,} characters, of which about {most:,} are shown.]\n"
    kept = max(most - len(note), 0)
    beginning = round(kept * SHARE_OF_BEGINNING)
    return text[:beginning] + note + text[len(text) - (kept - beginning) :]


def _as_text(raw: Any) -> str:
    return raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
