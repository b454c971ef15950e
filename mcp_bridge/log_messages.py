"""Log messages and progress of a run, sent to the client that called it and asked for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import models
from django.utils import timezone
from mcp_types import LoggingMessageNotification, LoggingMessageNotificationParams

from catalogue.database import run_in_database
from connectors.protocol import LogMessage, Progress, covers_level
from executions.run_callers import RunListener, listening
from identity.tokens import Access, digest_of
from mcp_bridge.models import ClientLogLevel
from mcp_bridge.request_meta import SESSION_HEADER, Context

LAST_SECONDS = 1.0  # For news that are unsent when the call is answered
KEPT = timedelta(days=7)  # A level, for clients that do not come back
MOST_OF_CALLER = 20  # The latest levels of the clients of one caller
CALLERS_PART = 16  # Characters of a client's key that are the same for all clients of a caller


@dataclass(frozen=True, slots=True)
class ClientLog:
    """Sends to the client of one request, on the stream that answers it."""

    context: Context
    level: str | None  # None: the one that the client has set in an earlier request
    client: str = ""  # See `client_key`

    async def find_level(self) -> str:
        return await run_in_database(find_level, self.client) if self.level is None else self.level

    async def send(self, message: LogMessage) -> None:
        params = LoggingMessageNotificationParams.model_validate(
            {"level": message.level, "data": message.data, "logger": message.logger or None}
        )
        await self.context.session.send_notification(
            LoggingMessageNotification(params=params), related_request_id=self.context.request_id
        )


@asynccontextmanager
async def passing_on(
    execution_id: UUID, log: ClientLog | None, report: Callable[[Progress], Awaitable[None]] | None
) -> AsyncIterator[None]:
    """`log`, `report`: None if the client wants none."""
    listener = RunListener(None if log is None else log.find_level)

    async def send(news: LogMessage | Progress) -> None:
        if isinstance(news, Progress):
            if report is not None:
                await report(news)
        elif log is not None and covers_level(await listener.level(), news.level):
            await log.send(news)

    sending = asyncio.create_task(listener.send_each(send))
    try:
        with listening(execution_id, listener):
            yield
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await listener.drain()
    finally:
        sending.cancel()


def client_key(context: Context, access: Access) -> str:
    """Identifies the client by its session, if it has one, and its address, user agent and caller."""
    request: Any = context.request
    address = request.client.host if request.client else ""
    named = (request.headers.get(name, "") for name in (SESSION_HEADER, "user-agent"))
    client = digest_of("\0".join((access.caller.key, address, *named)))
    return digest_of(access.caller.key)[:CALLERS_PART] + client[CALLERS_PART:]


def keep_level(client: str, level: str) -> None:
    now = timezone.now()
    ClientLogLevel.objects.update_or_create(client=client, defaults={"level": level, "set_at": now})
    of_caller = ClientLogLevel.objects.filter(client__startswith=client[:CALLERS_PART]).order_by("-set_at")
    outdated = models.Q(pk__in=list(of_caller.values_list("pk", flat=True)[MOST_OF_CALLER:]))
    ClientLogLevel.objects.filter(outdated | models.Q(set_at__lt=now - KEPT)).delete()


def find_level(client: str) -> str:
    """Empty if it requested none."""
    return ClientLogLevel.objects.filter(client=client).values_list("level", flat=True).first() or ""
