"""Those who call: each lives through one call, whatever happens to its connection."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx2

from dev.chaos.deployment import Deployment
from dev.chaos.doors import Answer, ConnectionBroke, NothingSent, Refused, attempt, cancel
from dev.chaos.plan import Call, Persistence

TRY_AGAIN_SECONDS = 0.3


@dataclass
class Story:
    """What came of one call, as its client saw it."""

    call: Call
    answer: Answer | None = None
    breaks: Counter[str] = field(default_factory=Counter)
    """Attempts without an answer, by what was seen of the reason."""
    refusals: list[str] = field(default_factory=list)
    cancelled: bool | None = None
    """Whether the product said that the run was cancelled; None without a cancellation."""

    @property
    def attempts(self) -> int:
        """Requests that the product may have carried out."""
        return self.breaks.total() + (self.answer is not None)

    @property
    def gave_up(self) -> bool:
        return self.answer is None and self.call.persistence is Persistence.GIVE_UP


class Crowd:
    """The clients, with the addresses and tokens that they have in common."""

    def __init__(self, deployment: Deployment, *, patience: float) -> None:
        """`patience`: seconds after which a client that gets no answer stops, however persistent it is."""
        self._deployment = deployment
        self._give_up_at = time.monotonic() + patience
        # A connection of its own for each request: what cannot connect surely was not sent.
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=10),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def live_through(self, call: Call) -> Story:
        story = Story(call)
        try:
            await self._get_an_answer(story)
            if call.cancel_after is not None and story.answer and story.answer.execution_id:
                await asyncio.sleep(call.cancel_after)
                await self._cancel(story, story.answer.execution_id)
        except Refused as refusal:
            story.refusals.append(str(refusal))
        return story

    async def _get_an_answer(self, story: Story) -> None:
        call, turn = story.call, story.call.web
        tool = self._deployment.tools[call.source][call.workflow]
        while time.monotonic() < self._give_up_at:
            hangs_up = call.hangs_up_after is not None and not story.breaks
            url, token = self._web(turn), self._deployment.tokens[call.caller]
            try:
                story.answer = await attempt(self._client, url, token, tool, call, hangs_up=hangs_up)
                return
            except NothingSent:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            except ConnectionBroke as broken:
                story.breaks[str(broken)] += 1
                if call.persistence is Persistence.GIVE_UP:
                    return
                await asyncio.sleep(call.repeat_after or TRY_AGAIN_SECONDS)
            turn += 1

    async def _cancel(self, story: Story, execution_id: str) -> None:
        """At the other web process than the one that was called first."""
        turn, token = story.call.web + 1, self._deployment.tokens[story.call.caller]
        while time.monotonic() < self._give_up_at:
            try:
                story.cancelled = await cancel(self._client, self._web(turn), token, execution_id)
                return
            except ConnectionBroke:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
                turn += 1

    def _web(self, turn: int) -> str:
        return self._deployment.web_urls[turn % len(self._deployment.web_urls)]
