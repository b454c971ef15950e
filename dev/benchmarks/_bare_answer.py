"""An ASGI application that answers every request with the same bytes: what uvicorn alone can do.

The file that BARE_ANSWER names holds them.
"""

import os
from pathlib import Path
from typing import Any

ANSWER = Path(os.environ["BARE_ANSWER"]).read_bytes()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _accept_lifespan(receive, send)
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def _accept_lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
