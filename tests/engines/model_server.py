"""A model server for tests: chat completions over real HTTP, with scripted answers and misbehaviours.

By hand: `python -m tests.engines.model_server` chooses the tool that has most words of the request.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.connectors.scripted import Behaviour, Received, ScriptedEngine, replies
from tests.engines.hostile_servers import hostile
from tests.engines.model_answers import KEY, MODEL, Answer, error, objects_to, proposes, says

__all__ = ["KEY", "MODEL", "Answer", "Asked", "ModelServer", "proposes"]


@dataclass(frozen=True)
class Asked:
    """One request as the server got it."""

    headers: Mapping[str, str]
    target: str
    json: dict[str, Any]

    @property
    def prompt(self) -> str:
        """All messages, one after another."""
        return "\n\n".join(message["content"] for message in self.json["messages"])

    @property
    def format(self) -> str:
        """`json_schema`, `json_object` or empty."""
        return str(self.json.get("response_format", {}).get("type", ""))


class ModelServer:
    """What it was asked, and what it is to answer."""

    def __init__(self) -> None:
        self.url = ""
        """What OPENAI_BASE_URL is to be."""
        self.asked: list[Asked] = []
        self.objections: dict[str, Behaviour] = {}
        """By a parameter's name, or a type of response_format: what whoever sends it gets instead."""
        self._script: list[Answer] = []
        self._choose: Callable[[Asked], Answer] = _nothing_scripted
        self._loop: asyncio.AbstractEventLoop | None = None
        self._released: list[asyncio.Event] = []
        self._waiting = threading.Event()

    def script(self, *answers: Answer) -> None:
        """One after another; what comes after them is `answer_by`'s."""
        self._script += answers

    def answer_by(self, choose: Callable[[Asked], Answer]) -> None:
        """Whenever the script is empty."""
        self._choose = choose

    def start_over(self) -> None:
        """As if nothing had been scripted or asked yet."""
        self._script.clear()
        self.asked.clear()

    def object_to(self, *names: str) -> None:
        """Refuse parameters, or types of response_format, as OpenAI's server does."""
        self.objections |= {name: objects_to(name) for name in names}

    def slow(self, answer: Answer) -> Behaviour:
        """The answer, but not before `release`."""

        async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
            self._released.append(released := asyncio.Event())
            self._waiting.set()
            await released.wait()
            await _behaviour(answer)(request, writer)

        return behave

    def wait_until_asked_slowly(self, seconds: float = 10) -> None:
        assert self._waiting.wait(seconds), "nobody asked"

    def release(self) -> None:
        """Let every slow answer go."""
        assert self._loop is not None, "nobody has asked this server anything yet"
        for released in self._released:
            self._loop.call_soon_threadsafe(released.set)

    @contextmanager
    def running(self) -> Iterator["ModelServer"]:
        """Serve on a port of its own in a thread of this process; `url` says where."""
        with hostile(self._behave) as engine:
            self.url = f"{engine.base_url}/v1"
            self.engine: ScriptedEngine = engine
            yield self

    async def _behave(self, request: Received, writer: asyncio.StreamWriter) -> None:
        self._loop = asyncio.get_running_loop()
        if (request.method, request.target) != ("POST", "/v1/chat/completions"):
            await replies(404, error(f"Unknown request URL: {request.method} {request.target}"))(
                request, writer
            )
            return
        asked = Asked(request.headers, request.target, request.json)
        self.asked.append(asked)
        await self._answer(asked)(request, writer)

    def _answer(self, asked: Asked) -> Behaviour:
        given = {*asked.json, asked.format}
        for name, objection in self.objections.items():
            if name in given:
                return objection
        return _behaviour(self._script.pop(0) if self._script else self._choose(asked))


def _behaviour(answer: Answer) -> Behaviour:
    return answer if callable(answer) else says(answer)


def _nothing_scripted(asked: Asked) -> Behaviour:
    return replies(418, error("Nothing is scripted for this request."))


def choose_by_words(asked: Asked) -> dict[str, Any] | str:
    """The tool with most words of the request; where there are none, the prompt's last lines come back."""
    names = re.findall(r"^name: (\S+)", asked.prompt, re.MULTILINE)
    if not names:
        return asked.json["messages"][-1]["content"][-500:]
    words = set(re.findall(r"[a-z]{3,}", asked.json["messages"][-1]["content"].lower()))
    scores = {name: len(words & set(re.findall(r"[a-z]{3,}", name.lower()))) for name in names}
    best = max(names, key=lambda name: scores[name])
    return proposes(best if scores[best] else None, reason=f"{scores[best]} words in common.")


def main() -> None:
    server = ModelServer()
    server.answer_by(choose_by_words)
    with server.running():
        print(f"OPENAI_BASE_URL={server.url} OPENAI_API_KEY={KEY} OPENAI_MODEL={MODEL}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
