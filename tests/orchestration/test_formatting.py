"""A response in words, through a real server (C6.1 to C6.5, C8.4)."""

import json
from typing import Any

import pytest

from catalogue.descriptions import tokens_for
from orchestration.language_model import Reply, ask_model
from orchestration.pipeline import cut_to_tokens, format_response


async def formatted(raw: Any, **more: Any) -> Reply:
    options = {"instructions": "What does A-7 cost?", "format_instructions": ""} | more
    return await format_response(raw, ask=ask_model, **options)


async def test_text_is_shown_as_text(model_server):
    model_server.script("Fine.")
    await formatted("plain\nwords")
    assert "<response>\nplain\nwords\n</response>" in model_server.asked[0].prompt


async def test_a_long_response_is_cut_to_the_context_and_says_so(model_server, settings):
    """C6.2: the beginning and the end stay; the whole prompt keeps within the limit."""
    settings.CATALOGUE = settings.CATALOGUE | {"model_context_tokens": 2_000}
    model_server.script("Many orders.")
    await formatted([{"order": number} for number in range(5_000)])
    prompt = model_server.asked[0].prompt
    assert tokens_for(len(prompt)) <= 2_001
    assert '[{"order":0}' in prompt
    assert '{"order":4999}]' in prompt
    whole = len(json.dumps([{"order": number} for number in range(5_000)], separators=(",", ":")))
    assert f"[The response was cut here: {whole:,} characters" in prompt


async def test_long_wishes_leave_room_for_some_of_the_response(model_server, settings):
    settings.CATALOGUE = settings.CATALOGUE | {"model_context_tokens": 1_000}
    model_server.script("Fine.")
    await formatted("r" * 10_000, format_instructions="f" * 8_000)
    assert "r" * 500 in model_server.asked[0].prompt


async def test_the_text_has_an_end(model_server):
    """C6.5."""
    model_server.script("long " * 20_000)
    assert len((await formatted(1)).text) == 50_000


@pytest.mark.parametrize("length", [0, 39, 40, 41, 100, 1_000])
def test_a_cut_keeps_within_its_tokens(length):
    assert len(cut_to_tokens("x" * length, 50)) <= 200
