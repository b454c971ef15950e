"""Who we are to an API: what is added to a request once everything else about it is settled."""

from connectors.errors import Misconfigured
from connectors.http_tools.config import HttpConfig, basic_word
from connectors.http_tools.specs import HTTPRequestSpec
from connectors.network.client import NO_CREDENTIALS, Credentials
from connectors.network.oauth import ClientCredentials
from connectors.network.policy import AddressPolicy
from connectors.network.transport import HttpLimits

LARGEST_TOKEN_ANSWER = 100_000


class Authorization:
    """Of one source. Make one per event loop, close it with `aclose`."""

    def __init__(self, config: HttpConfig, *, limits: HttpLimits, policy: AddressPolicy) -> None:
        self._config = config
        self._lacking = config.lacking
        self._fixed = _fixed_credentials(config)
        self._oauth = (
            _client_credentials(config, limits, policy)
            if config.authentication == "oauth_client_credentials" and not self._lacking
            else None
        )

    def __repr__(self) -> str:
        return f"Authorization({self._config.authentication})"

    @property
    def is_renewable(self) -> bool:
        """Whether another token may be accepted where one was refused."""
        return self._oauth is not None

    async def credentials(self) -> Credentials:
        """Valid now. Raises Misconfigured or what getting a token raises; then the API was sent nothing."""
        if self._lacking:
            raise Misconfigured(f"The source has no {self._lacking} yet; enter it in the source's settings.")
        return self._fixed if self._oauth is None else _bearer(await self._oauth.token())

    def forget(self, refused: Credentials) -> None:
        """The next ones are others, where others can be got."""
        if self._oauth is not None:
            self._oauth.forget(refused.headers["authorization"].partition(" ")[2])

    def refuse_overlap(self, spec: HTTPRequestSpec) -> None:
        """Raises Misconfigured where the tool says who we are, as one declared for another source may."""
        headers = {name.lower() for name in spec.headers} & {name.lower() for name in self._fixed.headers}
        query = spec.query_params.keys() & {name for name, _ in self._fixed.query}
        if taken := sorted(headers | query):
            raise Misconfigured(f"The tool sets {taken[0]} itself, which is where its source's key goes.")

    async def aclose(self) -> None:
        if self._oauth is not None:
            await self._oauth.aclose()


def _fixed_credentials(config: HttpConfig) -> Credentials:
    key = config.api_key.get_secret_value()
    match config.authentication:
        case "api_key" if config.api_key_in == "query":
            return Credentials(query=((config.api_key_name, key),))
        case "api_key":
            return Credentials(headers={config.api_key_name.lower(): key})
        case "bearer":
            return _bearer(config.token.get_secret_value())
        case "basic":
            return Credentials(
                headers={"authorization": f"Basic {basic_word(config.username, config.password)}"}
            )
    return NO_CREDENTIALS


def _bearer(token: str) -> Credentials:
    return Credentials(headers={"authorization": f"Bearer {token}"})


def _client_credentials(config: HttpConfig, limits: HttpLimits, policy: AddressPolicy) -> ClientCredentials:
    return ClientCredentials(
        url=config.oauth_token_url,
        client_id=config.oauth_client_id,
        client_secret=config.oauth_client_secret,
        audience=config.oauth_audience,
        scope=config.oauth_scope,
        limits=HttpLimits(
            connect_seconds=limits.connect_seconds,
            read_seconds=limits.read_seconds,
            total_seconds=limits.total_seconds,
            max_response_bytes=LARGEST_TOKEN_ANSWER,
        ),
        ca_file=config.ca_file,
        policy=policy,
    )
