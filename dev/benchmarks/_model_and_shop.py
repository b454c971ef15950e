"""A model server and an API in one bare ASGI application: whatever is asked, the answer is there already."""

import json
from typing import Any

TOOL = "create_order"
ARGUMENTS = {"item": "kettle", "amount": 2}
PROPOSAL = {"reason": "It is the tool that orders.", "tool": TOOL, "arguments": ARGUMENTS}
TEXT = "Two kettles are ordered: number 17."
ORDER = json.dumps({"order": {"id": 17, "state": "new", "lines": [ARGUMENTS] * 10}}).encode()


def _completion(text: str) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "instant", "choices": [choice]}
    return json.dumps(body | {"usage": usage}).encode()


CHOICE, WORDS = _completion(json.dumps(PROPOSAL)), _completion(TEXT)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    answer = _answer(scope["path"], b"".join(pieces))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def _answer(path: str, body: bytes) -> bytes:
    if path != "/v1/chat/completions":
        return ORDER
    return CHOICE if b'"response_format"' in body else WORDS
