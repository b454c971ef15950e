"""Who we are to a server over HTTP: by a token that was given, or by one got with client credentials."""

import httpx2

from connectors.network.oauth import ClientCredentials
from connectors.network.redaction import Redactor
from connectors.network.transport import HttpLimits
from connectors.upstream_mcp.config import McpConfig

LARGEST_TOKEN_ANSWER = 100_000


class Authorization:
    """Puts the header into each request."""

    def __init__(self, config: McpConfig, redactor: Redactor) -> None:
        self._header = config.authorization_header
        self._scheme = config.authorization_scheme
        self._token = config.bearer_token.get_secret_value()
        self._redactor = redactor
        self._credentials = _client_credentials(config) if config.oauth_url else None

    async def add_to(self, request: httpx2.Request) -> None:
        """Raises what getting a token raises; then the request has not been sent."""
        if self._credentials is not None:
            token = await self._credentials.token()
            if token != self._token:
                self._redactor.learn(token)
                self._token = token
        if self._token:
            request.headers[self._header] = f"{self._scheme} {self._token}".strip()

    def renews_after(self, status: int) -> bool:
        """Whether a request that was answered so may be accepted with another token."""
        if status != httpx2.codes.UNAUTHORIZED or self._credentials is None:
            return False
        self._credentials.forget(self._token)
        return True

    async def aclose(self) -> None:
        if self._credentials is not None:
            await self._credentials.aclose()


def _client_credentials(config: McpConfig) -> ClientCredentials:
    seconds = config.request_timeout_seconds
    return ClientCredentials(
        url=config.oauth_url,
        client_id=config.oauth_client_id,
        client_secret=config.oauth_client_secret,
        audience=config.oauth_audience,
        scope=config.oauth_scope,
        limits=HttpLimits(
            connect_seconds=min(HttpLimits().connect_seconds, seconds),
            read_seconds=seconds,
            total_seconds=seconds,
            max_response_bytes=LARGEST_TOKEN_ANSWER,
        ),
        ca_file=config.ca_file,
    )
