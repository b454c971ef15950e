"""Asking a real server on loopback, well-behaved and otherwise (C4.1, C8.2, C9)."""

import asyncio
import time
from typing import Any

import pytest
from loguru import logger
from pydantic import SecretStr
from pytest_django import Settings

from orchestration.language_model import (
    Message,
    ModelError,
    ModelProblem,
    ModelSettings,
    Reply,
    TokenUsage,
    ask_model,
    connect_to_model,
)
from tests.engines import model_answers as wire
from tests.engines.model_server import KEY, MODEL
from tests.factories import NOWHERE

SCHEMA = {"type": "object", "properties": {"tool": {"type": "string"}}}
QUESTION: list[Message] = [{"role": "user", "content": "Which JSON?"}]


def configure(settings: Settings, **changes: Any) -> None:
    settings.CATALOGUE = settings.CATALOGUE | changes


async def ask(**more: Any) -> Reply:
    return await ask_model(QUESTION, **more)


async def failure(**more: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await ask(**more)
    assert KEY not in f"{raised.value!r} {raised.value.message}"
    return raised.value


async def test_the_model_is_asked_with_key_schema_and_limits(model_server):
    """C4.1, C9: one chat completion, with all that the server can be told about the answer."""
    model_server.script({"tool": "a"})
    reply = await ask(schema=SCHEMA)
    assert reply == Reply(text='{"tool": "a"}', model=MODEL, usage=TokenUsage(prompt=120, completion=30))
    [asked] = model_server.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {
        "model": MODEL,
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 2000,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False},
        },
    }


async def test_an_answer_in_words_is_asked_for_without_a_format(model_server):
    """C6.1."""
    model_server.script("It is done.")
    assert (await ask()).text == "It is done."
    assert "response_format" not in model_server.asked[0].json


async def test_nothing_of_the_environment_or_the_machine_is_sent(model_server, monkeypatch):
    """C9: the product's settings are the only ones."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-somebody")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin-key-of-somebody")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-somebody")
    monkeypatch.setenv("OPENAI_BASE_URL", NOWHERE)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Spy: yes\nAuthorization: Bearer ambient")
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    model_server.script("Hello.")
    await ask()
    headers = model_server.asked[0].headers
    assert set(headers) == {
        "host",
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "user-agent",
    }
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["user-agent"] == "workflow-catalogue"


async def test_a_server_without_a_key_gets_no_authorization(model_server, settings):
    configure(settings, openai_api_key=SecretStr(""))
    model_server.script("Hello.")
    await ask()
    assert "authorization" not in model_server.asked[0].headers


async def test_one_connection_serves_all_questions_of_a_loop(model_server):
    model_server.script("One.", "Two.")
    await ask()
    await ask()
    assert model_server.engine.connections == 1


async def test_neither_client_nor_settings_show_the_key(model_server):
    """C8.5: nothing that ends up in a log may hold it."""
    wanted = ModelSettings.configured()
    client = await connect_to_model(wanted)
    assert KEY not in f"{wanted!r} {client!r} {vars(client)!r}"


# What servers do not take


@pytest.mark.parametrize(
    ("refused", "sent_at_last"),
    [
        (["json_schema"], "json_object"),
        (["json_schema", "json_object"], ""),
        (["response_format"], ""),
    ],
)
async def test_formats_are_left_out_where_they_are_refused_and_never_sent_again(
    model_server, refused, sent_at_last
):
    """C4.1: structured outputs where they are supported, else JSON by word alone; nobody sees an error."""
    model_server.object_to(*refused)
    model_server.script({"tool": "a"}, {"tool": "b"})
    assert (await ask(schema=SCHEMA)).text == '{"tool": "a"}'
    tried = len(model_server.asked)
    assert (await ask(schema=SCHEMA)).text == '{"tool": "b"}'
    assert [asked.format for asked in model_server.asked[tried - 1 :]] == [sent_at_last, sent_at_last]


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        (["temperature"], {"max_tokens"}),
        (["max_tokens"], {"temperature", "max_completion_tokens"}),
        (["max_tokens", "max_completion_tokens"], {"temperature"}),
        (["max_tokens", "max_completion_tokens", "temperature", "response_format"], set()),
    ],
)
async def test_parameters_are_left_out_where_a_model_refuses_them(model_server, refused, kept):
    """C4.1: reasoning models take no temperature, newer ones another name for the limit."""
    model_server.object_to(*refused)
    model_server.script("One.", "Two.")
    await ask()
    await ask()
    last = model_server.asked[-1].json
    assert set(last) == {"model", "messages", *kept}
    assert model_server.asked[-2].json == last


@pytest.mark.parametrize("status", [400, 422])
async def test_a_refusal_that_names_nothing_is_found_out_by_trying(model_server, status):
    model_server.objections = {"response_format": wire.raw({"detail": "Bad input."}, status)}
    model_server.script({"tool": "a"})
    assert (await ask(schema=SCHEMA)).text == '{"tool": "a"}'


async def test_one_refusal_that_names_nothing_and_does_not_come_again_costs_no_parameter(model_server):
    """C4.1: what is not known to be refused goes on being sent, now and for the life of the process."""
    model_server.script(wire.raw(wire.error("Bad request."), 400), {"tool": "a"}, {"tool": "b"})
    assert (await ask(schema=SCHEMA)).text == '{"tool": "a"}'
    assert (await ask(schema=SCHEMA)).text == '{"tool": "b"}'
    first, *others = [asked.json for asked in model_server.asked]
    assert first["temperature"] == 0 and others == [first, first]


@pytest.mark.parametrize("words", ["Invalid model: scripted-model", "The model `x` does not exist"])
async def test_a_server_that_says_400_to_a_model_it_does_not_know_is_told_as_one(model_server, words):
    """C8.2: some do not answer 404."""
    model_server.answer_by(lambda _: wire.raw(wire.error(words), 400))
    error = await failure()
    assert error.problem == ModelProblem.UNUSABLE
    assert "OPENAI_MODEL" in error.message and words in error.message


async def test_a_server_that_fails_over_a_format_is_asked_without_it(model_server):
    """Some answer 500 to what they do not know."""
    model_server.objections = {"json_schema": wire.objects_to("json_schema", status=500)}
    model_server.script({"tool": "a"})
    assert (await ask(schema=SCHEMA)).text == '{"tool": "a"}'


async def test_a_server_that_takes_the_schema_in_another_place_gets_it_there(model_server):
    """C4.1: llama.cpp's Python server takes it beside `json_object` only."""
    model_server.object_to("json_schema")
    model_server.script({"tool": "a"})
    await ask(schema=SCHEMA)
    assert model_server.asked[-1].json["response_format"] == {"type": "json_object", "schema": SCHEMA}


async def test_a_server_that_takes_no_schema_at_all_is_asked_for_json(model_server):
    """C4.1: one that knows only what is older than structured outputs."""
    plain = {"type": "json_object"}
    objection = wire.objects_to("response_format")
    model_server.answer_by(
        lambda asked: wire.says('{"tool": "a"}') if asked.json["response_format"] == plain else objection
    )
    assert (await ask(schema=SCHEMA)).text == '{"tool": "a"}'
    assert [asked.format for asked in model_server.asked] == ["json_schema", "json_object", "json_object"]


async def test_each_model_has_its_own_habits(model_server, settings):
    model_server.object_to("json_schema")
    model_server.script({"tool": "a"})
    await ask(schema=SCHEMA)
    model_server.objections.clear()
    configure(settings, openai_model="another-model")
    model_server.script({"tool": "b"})
    await ask(schema=SCHEMA)
    assert model_server.asked[-1].format == "json_schema"


async def test_what_is_refused_whatever_is_left_out_is_told_in_the_servers_words(model_server):
    """C8.2."""
    model_server.answer_by(lambda _: wire.raw(wire.error(f"No such thing for {KEY}."), 400))
    error = await failure(schema=SCHEMA)
    assert error.problem == ModelProblem.REFUSED
    assert error.message.endswith("It says: No such thing for ***.")
    assert len(model_server.asked) == 8


async def test_a_prompt_that_is_too_long_is_not_tried_in_other_ways(model_server):
    """C8.2: what to do about it is said."""
    words = "This model's maximum context length is 4096 tokens, max_tokens is too large."
    model_server.script(wire.raw(wire.error(words, code="context_length_exceeded"), 400))
    error = await failure(schema=SCHEMA)
    assert error.problem == ModelProblem.UNUSABLE
    assert "CATALOGUE_MODEL_CONTEXT_TOKENS" in error.message
    assert len(model_server.asked) == 1


# Answers of no use


@pytest.mark.parametrize(
    ("answer", "problem", "words"),
    [
        (wire.declines("I must not."), ModelProblem.REFUSED, "declines: I must not."),
        (wire.says("x", finish_reason="content_filter"), ModelProblem.REFUSED, "content filter"),
        (wire.stops_short(), ModelProblem.CUT_OFF, "CATALOGUE_MODEL_ANSWER_TOKENS"),
        (wire.says(""), ModelProblem.EMPTY, "empty"),
        (wire.says(" \n"), ModelProblem.EMPTY, "empty"),
        (wire.says(None), ModelProblem.EMPTY, "empty"),
        (wire.says("<think>I wonder"), ModelProblem.EMPTY, "empty"),
    ],
    ids=["refusal", "filtered", "length", "empty", "blank", "null", "thoughts only"],
)
async def test_an_answer_of_no_use_is_told_apart_and_its_tokens_count(model_server, answer, problem, words):
    """C8.2."""
    model_server.script(answer)
    error = await failure()
    assert error.problem == problem
    assert words in error.message
    assert error.usage == TokenUsage(prompt=120, completion=30)


@pytest.mark.parametrize(
    ("answer", "problem", "words"),
    [
        (wire.answers_html(), ModelProblem.UNREACHABLE, "Check OPENAI_BASE_URL"),
        (wire.refuses_key(), ModelProblem.UNUSABLE, "Check OPENAI_API_KEY"),
        (wire.does_not_know_model(), ModelProblem.UNUSABLE, "OPENAI_MODEL"),
        (wire.raw({"choices": []}), ModelProblem.EMPTY, "no choices"),
        (wire.raw({"choices": "none"}), ModelProblem.EMPTY, "no choices"),
        (wire.raw([1]), ModelProblem.EMPTY, "no choices"),
        (wire.raw({"error": {"message": "Provider is gone"}}), ModelProblem.REFUSED, "Provider is gone"),
        (wire.raw("", 302), ModelProblem.UNREACHABLE, "redirects"),
        (
            wire.raw(wire.error("You exceeded your quota", code="insufficient_quota"), 429),
            ModelProblem.UNUSABLE,
            "exceeded your quota",
        ),
    ],
    ids=["html", "401", "404", "no choices", "text", "list", "error in 200", "302", "quota"],
)
async def test_what_cannot_get_better_is_not_asked_again(model_server, settings, answer, problem, words):
    """C8.2."""
    configure(settings, model_retries=3)
    model_server.script(answer)
    error = await failure()
    assert error.problem == problem
    assert words in error.message
    assert len(model_server.asked) == 1


async def test_not_even_a_part_of_the_key_is_quoted(model_server):
    """C8.2: servers quote its beginning and end when they refuse it."""
    model_server.script(wire.refuses_key())
    error = await failure()
    assert "The model server rejects the API key (401)." in error.message
    assert KEY[-4:] not in error.message


async def test_a_huge_answer_is_not_read_to_its_end(model_server):
    model_server.script(wire.answers_hugely(11_000_000))
    error = await failure()
    assert "larger than 10,000,000 bytes" in error.message


async def test_thoughts_before_the_answer_are_not_part_of_it(model_server):
    """C4.1: as reasoning models write them."""
    model_server.script('<think>\nHm, {"tool": "b"}?\n</think>\n\nIt is <think>a</think>.')
    assert (await ask()).text == "It is <think>a</think>."


async def test_an_answer_in_parts_is_put_together(model_server):
    parts = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "It "},
        {"type": "text", "text": "is."},
    ]
    body = wire.completion("")
    body["choices"][0]["message"]["content"] = parts
    model_server.script(wire.raw(body))
    assert (await ask()).text == "It is."


async def test_a_server_that_counts_nothing_costs_nothing_we_know_of(model_server):
    model_server.script(wire.says("Hello.", usage=None))
    assert (await ask()).usage == TokenUsage()


# Asking again


@pytest.mark.parametrize(
    "first",
    [
        wire.busy(),
        wire.busy(status=503),
        wire.raw(wire.error("Oops."), 500),
        wire.raw(wire.error("Timeout."), 408),
        wire.cuts_the_connection(),
    ],
    ids=["429", "503", "500", "408", "cut"],
)
async def test_what_may_pass_is_asked_again(model_server, settings, first, monkeypatch):
    """C8.2: busy and broken servers get another chance."""
    monkeypatch.setattr("orchestration.language_model.FIRST_WAIT", 0.01)
    configure(settings, model_retries=1)
    model_server.script(first, "Hello.")
    assert (await ask()).text == "Hello."
    assert len(model_server.asked) == 2


async def test_a_server_that_stays_busy_is_given_up_after_the_retries(model_server, settings, monkeypatch):
    """C8.2."""
    monkeypatch.setattr("orchestration.language_model.FIRST_WAIT", 0.01)
    configure(settings, model_retries=2)
    model_server.answer_by(lambda _: wire.busy())
    error = await failure()
    assert error.problem == ModelProblem.BUSY
    assert len(model_server.asked) == 3


async def test_a_wait_that_is_longer_than_the_time_left_is_not_begun(model_server, settings):
    """C8.2: Retry-After is respected, and so is the time that an answer may take."""
    configure(settings, model_retries=3, model_timeout=60.0)
    model_server.script(wire.busy(retry_after="120"))
    started = time.monotonic()
    error = await failure()
    assert (error.problem, len(model_server.asked)) == (ModelProblem.BUSY, 1)
    assert "120 s" in error.message
    assert time.monotonic() - started < 60


async def test_nobody_at_the_address_is_unreachable(model_server, settings):
    """C8.2."""
    configure(settings, openai_base_url=NOWHERE)
    error = await failure()
    assert error.problem == ModelProblem.UNREACHABLE
    assert "connection refused" in error.message
    # Whoever asks need not know where our servers are.
    assert NOWHERE not in error.message


@pytest.mark.parametrize("manner", ["silent", "trickling"])
async def test_an_answer_that_takes_too_long_is_a_timeout(model_server, settings, manner):
    """C8.2: also against a server that sends a byte now and then."""
    configure(settings, model_timeout=0.3, model_retries=3)
    model_server.script(model_server.slow("Late.") if manner == "silent" else wire.trickles())
    await connect_to_model(ModelSettings.configured())
    error = await failure()
    assert error.problem == ModelProblem.TIMEOUT
    assert "CATALOGUE_MODEL_TIMEOUT" in error.message
    assert len(model_server.asked) == 1


async def test_whoever_stops_waiting_ends_the_question(model_server):
    model_server.script(model_server.slow("Late."), "In time.")
    question = asyncio.create_task(ask())
    await asyncio.to_thread(model_server.wait_until_asked_slowly)
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert (await ask()).text == "In time."


# Settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"openai_model": ""}, "Set OPENAI_MODEL"),
        ({"openai_base_url": "not a url"}, "OPENAI_BASE_URL"),
        ({"openai_base_url": "http://169.254.169.254/v1"}, "OPENAI_BASE_URL"),
        ({"openai_api_key": SecretStr("kéy")}, "OPENAI_API_KEY"),
    ],
    ids=["no model", "no url", "metadata address", "key"],
)
async def test_settings_that_cannot_work_are_named(model_server, settings, changes, words):
    """C8.2: without a model the feature is off and says so."""
    configure(settings, **changes)
    error = await failure()
    assert error.problem == ModelProblem.NOT_CONFIGURED
    assert words in error.message
    assert not model_server.asked


async def test_logs_tell_model_time_and_tokens_and_never_what_was_said(model_server):
    """C8.5, C9: loguru, without prompts, answers or keys."""
    lines: list[str] = []
    sink = logger.add(lines.append, level="DEBUG", format="{level} {message}")
    try:
        model_server.object_to("temperature")
        model_server.script("A secret answer.")
        await ask()
    finally:
        logger.remove(sink)
    told = "".join(lines)
    assert f"{MODEL} answered in" in told
    assert "120 + 30 tokens" in told
    assert not any(word in told for word in (KEY, "Which JSON?", "secret"))


async def test_requests_that_are_the_first_and_come_at_once_share_one_connection_pool(model_server):
    """Each made its own; all but the last were never closed."""
    wanted = ModelSettings.configured()

    clients = await asyncio.gather(*(connect_to_model(wanted) for _ in range(4)))

    assert len(set(map(id, clients))) == 1
