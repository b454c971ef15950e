"""An engine whose runs ask people, on the wire: the simplified API whose status has questions."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from connectors.network.client import fill_path
from connectors.protocol import Capabilities, Question, RunRef, RunSnapshot, RunState
from connectors.simplified import SimplifiedConnector
from tests.connectors.scripted import Received, replies, response
from tests.executions.engines import WireEngine, completed, status

CONSENT: dict[str, Any] = {"type": "object", "properties": {}}
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
    "required": ["amount"],
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"address": {"type": "object", "properties": {"street": {"type": "string"}}}},
}


class AskingConnector(SimplifiedConnector):
    kind: ClassVar[str] = "asking"
    label: ClassVar[str] = "Asking"

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, asks_people=True, min_poll_seconds=0.0)

    async def poll(self, run: RunRef) -> RunSnapshot:
        snapshot = await super().poll(run)
        asked = snapshot.raw.get("questions", []) if snapshot.state is RunState.RUNNING else []
        return replace(snapshot, questions=None if asked is None else [Question(**one) for one in asked])

    async def answer(self, run: RunRef, question_id: str, content: dict[str, Any]) -> None:
        path = fill_path("/runs/{run_id}/answer", run_id=run.run_id)
        body = {"question": question_id, "content": content}
        await self._client.request("POST", path, body=body, repeatable=False)


class Asking:
    """What its one run asks, and the answers that it has taken."""

    def __init__(self, wire: WireEngine) -> None:
        self.wire = wire
        self.questions: dict[str, dict[str, Any]] = {}
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.on_answer: Callable[[], bytes | None] = lambda: None
        """Before it takes an answer: what it replies instead."""
        self.reply: bytes | None = response(204)
        """After it has taken one; None: it hangs up."""
        self.is_unsure = False
        """It does not know what the run asks."""
        self.lingers = False
        """It goes on listing what was answered."""
        wire.on_status, wire.on_answer = self._tell, self._take

    def ask(self, identity: str = "q1", message: str = "How much?", schema: Any = FORM, **more: Any) -> None:
        self.questions[identity] = {"id": identity, "message": message, "schema": schema} | more

    async def _tell(self, request: Received, writer: asyncio.StreamWriter) -> None:
        done = self.taken and not self.questions
        listed = None if self.is_unsure else [*self.questions.values()]
        told = completed({"answers": self.taken}) if done else status(questions=listed)
        await replies(200, told)(request, writer)

    async def _take(self, request: Received, writer: asyncio.StreamWriter) -> None:
        given = json.loads(request.body)
        answer = given["question"], given["content"]
        self.sent.append(answer)
        if (instead := self.on_answer()) is not None:
            writer.write(instead)
            return
        if given["question"] not in self.questions:
            writer.write(response(404, '{"error": "It does not ask that."}'))
            return
        self.taken.append(answer)
        if not self.lingers:
            del self.questions[given["question"]]
        if self.reply is None:
            writer.close()
        else:
            writer.write(self.reply)
