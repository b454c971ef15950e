"""What a model server answers, and how it misbehaves: behaviours for `tests.engines.model_server`."""

import json
from typing import Any

from tests.connectors.scripted import Behaviour, repeats, replies, sends_and_hangs_up

MODEL = "scripted-model"
KEY = "model-key-0123456789abcdef"
PART_OF_KEY = f"{KEY[:12]}*****{KEY[-4:]}"
USAGE = {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}
MARKED_JSON = '{"object": "chat.completion", "choices": [{"message": {"content": "'

Answer = str | dict[str, Any] | list[Any] | Behaviour
"""Text that the model says, a value that it says as JSON, or what happens on the wire instead."""


def completion(content: Any, **message: Any) -> dict[str, Any]:
    """The body of an answer; what is not text is written as JSON."""
    text = content if content is None or isinstance(content, str) else json.dumps(content)
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text} | message,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": MODEL,
        "choices": [choice],
        "usage": USAGE,
    }


def says(content: Any, *, finish_reason: str = "stop", usage: Any = USAGE, **message: Any) -> Behaviour:
    """`usage=None`: the server counts nothing."""
    body = completion(content, **message)
    body["choices"][0]["finish_reason"] = finish_reason
    body["usage"] = usage
    if usage is None:
        del body["usage"]
    return replies(200, body)


def proposes(
    tool: str | None, arguments: Any = None, *, reason: str = "It fits.", **more: Any
) -> dict[str, Any]:
    """What the model is asked for; `http_request={...}` for the request that it has in mind."""
    return {"reason": reason, "tool": tool, "arguments": {} if arguments is None else arguments} | more


def fenced(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2)}\n```"


def wordy(value: Any) -> str:
    return (
        f"Sure! Here is what I would do:\n\n{json.dumps(value)}\n\nLet me know if {{you}} want anything else."
    )


def declines(words: str = "I'm sorry, but I can't help with that.") -> Behaviour:
    """A refusal of the model's, in the field that structured outputs have for it."""
    return says(None, refusal=words)


def stops_short(content: str = '{"tool": "get_or') -> Behaviour:
    """The limit on the answer's length was reached."""
    return says(content, finish_reason="length")


def busy(*, retry_after: str = "0", status: int = 429) -> Behaviour:
    return replies(status, error("Rate limit reached.", code="rate_limit_exceeded"), retry_after=retry_after)


def fails(status: int = 500) -> Behaviour:
    return replies(status, error("The server had an error while processing your request."))


def refuses_key() -> Behaviour:
    """As OpenAI's server does: with part of the key."""
    return replies(401, error(f"Incorrect API key provided: {PART_OF_KEY}.", code="invalid_api_key"))


def does_not_know_model() -> Behaviour:
    return replies(404, error("The model does not exist or you do not have access.", code="model_not_found"))


def objects_to(name: str, *, status: int = 400) -> Behaviour:
    """Refuse a parameter, or a type of response_format."""
    formats = ("json_schema", "json_object")
    param = "response_format" if name in formats else name
    body = error(f"Unsupported value: '{param}': '{name}' is not supported with this model.", param=param)
    return replies(status, body)


def cuts_the_connection() -> Behaviour:
    """In the middle of the answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n"
    return sends_and_hangs_up(head + MARKED_JSON.encode())


def answers_html() -> Behaviour:
    page = "<!doctype html><html><head><title>Welcome to nginx</title></head><body>It works</body></html>"
    return replies(200, page, content_type="text/html")


def answers_hugely(size: int) -> Behaviour:
    return replies(200, completion("x" * size))


def trickles() -> Behaviour:
    """White space without end, in which no silence is long enough to be noticed."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    return repeats(head, b"1\r\n \r\n", every_seconds=0.01)


def raw(body: Any, status: int = 200) -> Behaviour:
    """JSON of a shape of its own."""
    return replies(status, body)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None} | more
    }
