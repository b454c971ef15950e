"""Access tokens by OAuth client credentials, shared by calls and renewed before they expire."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from loguru import logger
from pydantic import SecretStr

from connectors.errors import ConnectorError, InvalidAnswer, login_failure
from connectors.formats.json import is_number
from connectors.network.client import EngineClient
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy
from connectors.network.transport import HttpLimits


class ClientCredentials:
    """One client at one token URL. Make one per engine and event loop, close it with `aclose`. Neither errors
    nor the repr show a secret."""

    def __init__(
        self,
        config: Any,
        *,
        url: str,
        seconds: float,
        ca_file: str = "",
        policy: AddressPolicy = ENGINE_ADDRESSES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`config`: the settings that `connectors.settings` has for OAuth. `seconds`: for one request."""
        self._url = url
        self._client_id = config.oauth_client_id
        self._client_secret: SecretStr = config.oauth_client_secret
        self._wanted = {"audience": config.oauth_audience, "scope": config.oauth_scope}
        self._client = EngineClient(
            base_url=url,
            secrets=[self._client_secret.get_secret_value()],
            limits=HttpLimits.within(seconds, max_response_bytes=100_000),
            ca_file=ca_file,
            policy=policy,
        )
        self._now = now
        self._lock = asyncio.Lock()
        self._token = ""
        self._renew_at = 0.0
        self._expires_at = 0.0

    def __repr__(self) -> str:
        return f"ClientCredentials({self._url})"

    async def token(self) -> str:
        """Raises Rejected, Unreachable, InvalidAnswer or Misconfigured."""
        if self._now() < self._renew_at:
            return self._token
        async with self._lock:
            # Another call may have renewed the token while this one waited for the lock.
            if self._now() >= self._renew_at:
                await self._renew()
        return self._token

    def forget(self, token: str) -> None:
        """Request another token at the next call: the engine refused this one."""
        if token == self._token:
            self._renew_at = self._expires_at = 0.0

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _renew(self) -> None:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._client_id,
            "client_secret": self._client_secret.get_secret_value(),
            **{name: value for name, value in self._wanted.items() if value},
        }
        try:
            token, seconds = _read(await self._client.request_json("POST", self._url, form=form))
        except ConnectorError as error:
            if self._now() < self._expires_at:
                logger.warning(
                    "The access token was not renewed, so the old one is still used: {}", error.message
                )
                self._renew_at = min(self._now() + 5.0, self._expires_at)
                return
            message = f"No access token from the OAuth token URL: {error.message}"
            raise login_failure(error, message) from None
        self._token = token
        self._expires_at = self._now() + seconds
        # Before it expires, so that calls need not wait.
        self._renew_at = self._now() + seconds * 0.8


def _read(answer: Any) -> tuple[str, float]:
    """Returns the token and the seconds for which it is valid."""
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
        raise InvalidAnswer("the answer has no usable access_token.")
    seconds = answer.get("expires_in")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
        seconds = int(seconds)
    if not is_number(seconds) or seconds <= 0:
        return token, 300.0  # The server does not say how long the token is valid
    return token, float(seconds)
