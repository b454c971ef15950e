"""The connection to the model server: the official SDK over a transport that sends what we mean to send.

The SDK takes organisation, project, headers and more from the environment, and tells the server about the
machine. The transport lets nothing of that pass, and puts in the key, which the SDK never gets to see.
"""

import asyncio
import atexit
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import httpx2
from django.conf import settings
from pydantic import SecretStr

from connectors.background import finish_in_background_loop
from connectors.network.client import USER_AGENT
from connectors.network.policy import normalise_base_url
from connectors.network.transport import GuardedTransport, HttpLimits, tls_context
from orchestration.model.replies import ModelError, ModelProblem

if TYPE_CHECKING:
    from openai import AsyncOpenAI


SENT_HEADERS = ("host", "accept", "content-type", "content-length")
CONNECT_SECONDS = 5.0
CLOSING_SECONDS = 2.0
NO_KEY = "the transport has it"
"""The SDK does not send without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Which model, where, and what an answer of it may cost."""

    base_url: str
    api_key: SecretStr
    model: str
    seconds: float
    """For one answer, with all attempts and waits."""
    retries: int
    answer_tokens: int

    @classmethod
    def configured(cls) -> Self:
        """Raises ModelError where there is nothing to be asked."""
        configured = settings.CATALOGUE
        if not configured["openai_model"]:
            raise _not_configured(
                "No model is configured. Set OPENAI_MODEL, and OPENAI_BASE_URL for a server."
            )
        return cls(
            base_url=_base_url(configured["openai_base_url"]),
            api_key=_sendable(configured["openai_api_key"]),
            model=configured["openai_model"],
            seconds=configured["model_timeout"],
            retries=configured["model_retries"],
            answer_tokens=configured["model_answer_tokens"],
        )

    @property
    def limits(self) -> HttpLimits:
        connect = min(CONNECT_SECONDS, self.seconds)
        return HttpLimits(connect_seconds=connect, read_seconds=self.seconds, total_seconds=self.seconds)


class UnusableAnswer(Exception):
    """An answer that is not read; the message is the end of a sentence about it."""


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[ModelSettings, "AsyncOpenAI"]] = (
    WeakKeyDictionary()
)


async def connect_to_model(wanted: ModelSettings) -> "AsyncOpenAI":
    """The running loop's client, made anew when the settings have changed. It never retries by itself."""
    # The import takes half a second, which neither the start of a process nor its other requests shall pay.
    await asyncio.to_thread(_import_sdk)
    loop = asyncio.get_running_loop()
    known = _clients.get(loop)
    if known is not None and known[0] == wanted:
        return known[1]
    _clients[loop] = (wanted, _make_client(wanted))
    if known is not None:
        await known[1].close()
    return _clients[loop][1]


async def close_model_connection() -> None:
    """What lives on the running loop."""
    _, client = _clients.pop(asyncio.get_running_loop(), (None, None))
    if client is not None:
        await client.close()


def close_background_model_connection() -> None:
    """What lives on the background loop, before the process ends."""
    finish_in_background_loop(close_model_connection, seconds=CLOSING_SECONDS)


atexit.register(close_background_model_connection)


def _import_sdk() -> None:
    import openai.resources.chat.completions  # noqa: F401

    # OPENAI_LOG would switch on logging of its own, which the product's settings know nothing of.
    logging.getLogger("openai").setLevel(logging.WARNING)


def _make_client(wanted: ModelSettings) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    seconds = wanted.limits.connect_seconds
    # `ask_model` limits the whole time of a request, retries included.
    timeout = httpx2.Timeout(None, connect=seconds, pool=seconds)
    return AsyncOpenAI(
        base_url=wanted.base_url,
        api_key=NO_KEY,
        max_retries=0,
        timeout=timeout,
        http_client=httpx2.AsyncClient(transport=_ModelTransport(wanted), trust_env=False, timeout=timeout),
    )


class _ModelTransport(httpx2.AsyncBaseTransport):
    """Adds the key and drops whatever else the SDK would say; bounds what comes back."""

    def __init__(self, wanted: ModelSettings) -> None:
        self._limits = wanted.limits
        is_https = wanted.base_url.startswith("https:")
        tls = tls_context(verify=True, ca_file="") if is_https else None
        self._network = GuardedTransport(limits=wanted.limits, tls=tls)
        self._key = wanted.api_key

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {name: request.headers[name] for name in SENT_HEADERS if name in request.headers}
        headers |= {"user-agent": USER_AGENT, "accept-encoding": "identity"}
        if key := self._key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        response = await self._network.handle_async_request(
            httpx2.Request(
                request.method,
                request.url,
                headers=headers,
                stream=request.stream,
                extensions=request.extensions,
            )
        )
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise UnusableAnswer("is compressed although we asked for a plain one")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedBody(response.stream, self._limits.max_response_bytes)
        return response

    async def aclose(self) -> None:
        await self._network.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream, most: int) -> None:
        self._body = body
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in self._body:
            received += len(chunk)
            if received > self._most:
                raise UnusableAnswer(f"is larger than {self._most:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


def _base_url(text: str) -> str:
    try:
        return normalise_base_url(text)
    except ValueError as error:
        raise _not_configured(f"OPENAI_BASE_URL cannot be used. {error}") from None


def _sendable(key: SecretStr) -> SecretStr:
    stripped = key.get_secret_value().strip()
    if not (stripped.isascii() and stripped.isprintable()):
        raise _not_configured("OPENAI_API_KEY cannot be used: it must consist of printable ASCII characters.")
    return SecretStr(stripped)


def _not_configured(sentence: str) -> ModelError:
    return ModelError(sentence, problem=ModelProblem.NOT_CONFIGURED)
