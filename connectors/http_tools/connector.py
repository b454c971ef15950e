"""An API whose calls are tools: a call is a run, its answer the result."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from time import monotonic
from typing import Any, ClassVar
from uuid import UUID

from pydantic import BaseModel

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import (
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.http_tools.config import HttpConfig, basic_word
from connectors.http_tools.request import ACCEPT, build_request, content_of, headers_of, query_of
from connectors.http_tools.response import Call
from connectors.http_tools.tool import HttpOperation, HTTPRequestSpec
from connectors.network.client import NO_CREDENTIALS, Answer, Credentials, EngineClient
from connectors.network.oauth import ClientCredentials
from connectors.network.policy import AddressPolicy, http_tool_addresses
from connectors.network.transport import HttpLimits
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)

UNAUTHORIZED = 401


class Authorization:
    """One source's credentials. Make one per event loop, close it with `aclose`."""

    def __init__(self, config: HttpConfig, *, limits: HttpLimits, policy: AddressPolicy) -> None:
        self._config = config
        self._lacking = config.lacking
        self._fixed = _fixed_credentials(config)
        self._oauth: ClientCredentials | None = None
        if config.authentication == "oauth_client_credentials" and not self._lacking:
            self._oauth = ClientCredentials.of(
                config, url=config.oauth_token_url, limits=limits, ca_file=config.ca_file, policy=policy
            )

    def __repr__(self) -> str:
        return f"Authorization({self._config.authentication})"

    @property
    def is_renewable(self) -> bool:
        return self._oauth is not None

    async def credentials(self) -> Credentials:
        """Raises Misconfigured, or what requesting a token raises."""
        if self._lacking:
            raise Misconfigured(f"The source has no {self._lacking} yet; enter it in the source's settings.")
        return self._fixed if self._oauth is None else _bearer(await self._oauth.token())

    def forget(self, refused: Credentials) -> None:
        """Request another token for the next call, if these are a token."""
        if self._oauth is not None:
            self._oauth.forget(refused.headers["authorization"].partition(" ")[2])

    def refuse_overlap(self, spec: HTTPRequestSpec) -> None:
        """Raises Misconfigured if the tool sets a header or parameter of the credentials."""
        if self._fixed is NO_CREDENTIALS:
            return
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
            word = basic_word(config.username, config.password)
            return Credentials(headers={"authorization": f"Basic {word}"})
    return NO_CREDENTIALS


def _bearer(token: str) -> Credentials:
    return Credentials(headers={"authorization": f"Bearer {token}"})


class HttpConnector:
    """An HTTP API, whose operations are declared as tools or imported from an OpenAPI document."""

    kind: ClassVar[str] = "http"
    label: ClassVar[str] = "HTTP API (declared tools)"
    Config: ClassVar[type[BaseModel]] = HttpConfig

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        seconds, policy = config.request_timeout_seconds, http_tool_addresses()
        limits = HttpLimits.within(seconds, max_response_bytes=config.max_response_bytes)
        self._authorization = Authorization(config, limits=limits, policy=policy)
        self._client = EngineClient(
            base_url=config.base_url,
            secrets=config.secrets,
            limits=limits,
            verify_tls=config.verify_tls,
            ca_file=config.ca_file,
            policy=policy,
        )

    def __repr__(self) -> str:
        return f"HttpConnector({self._config.base_url})"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(lists_workflows=False, keeps_runs=False, differ_by_workflow=True)

    def capabilities_for(self, workflow: WorkflowRef) -> Capabilities:
        operation = HttpOperation.of(workflow)
        return Capabilities(
            idempotent_start=operation.is_safe
            or operation.method == "PUT"
            or bool(operation.idempotency_header),
            # Cancelling a request that only reads changes nothing.
            cancellable_start=operation.is_safe,
            lists_workflows=False,
            keeps_runs=False,
            differ_by_workflow=True,
        )

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        credentials = await self._authorization.credentials()
        answer = await self._client.exchange(
            "GET", "", headers={"accept": ACCEPT}, credentials=credentials, repeatable=True
        )
        # Gateways answer 403, and some APIs 401 to requests without credentials, though each tool works.
        if answer.status == UNAUTHORIZED and self._config.authentication != "none":
            raise Rejected("The API refused our credentials at its base URL with 401.")
        got = "a token was got, and " if self._authorization.is_renewable else ""
        reached = f"{self._config.base_url} can be reached: {got}it answered {answer.status}."
        if self._config.authentication == "none":
            return reached
        return f"{reached} Only a call of a tool shows whether the API accepts our credentials."

    async def discover(self) -> AsyncGenerator[WorkflowDefinition | RejectedDefinition]:
        """Yields nothing: an API's tools are declared in the catalogue."""
        nothing: list[WorkflowDefinition] = []
        for definition in nothing:
            yield definition

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        operation = HttpOperation.of(workflow)
        spec = build_request(operation, base_url=self._config.base_url, arguments=arguments)
        if not operation.anonymous:
            self._authorization.refuse_overlap(spec)
        started_at = datetime.now(UTC)
        # A request that only reads is cancelled by its caller.
        seconds = None if operation.is_safe else workflow.timeout_seconds
        answer = await self._send(operation, spec, str(key), seconds=seconds)
        call = Call(
            operation=operation,
            spec=spec,
            answer=answer,
            redactor=self._client.redactor,
            started_at=started_at,
            finished_at=datetime.now(UTC),
        )
        return Started(run_id=str(key), snapshot=call.snapshot())

    async def poll(self, run: RunRef) -> RunSnapshot:
        raise NotFound("The answer to this request was its result; it cannot be polled later.")

    async def cancel(self, run: RunRef) -> None:
        raise Unsupported("A request to an HTTP API cannot be taken back.")

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._authorization.aclose()

    async def _send(
        self, operation: HttpOperation, spec: HTTPRequestSpec, key: str, *, seconds: float | None
    ) -> Answer:
        """Errors about the answer have the request among their details."""
        until = None if seconds is None else monotonic() + seconds
        is_first = True
        content, content_type = content_of(operation, spec)
        headers = headers_of(operation, spec, key=key, content_type=content_type)
        while True:
            credentials = NO_CREDENTIALS if operation.anonymous else await self._authorization.credentials()
            try:
                answer = await self._client.exchange(
                    spec.method,
                    spec.url,
                    query=query_of(spec),
                    content=content,
                    headers=headers,
                    credentials=credentials,
                    repeatable=operation.is_safe,
                    follow_redirects=self._config.follow_redirects,
                    seconds=None if until is None else max(0.0, until - monotonic()),
                )
            except (Unreachable, OutcomeUnknown, InvalidAnswer) as error:
                error.details |= {"request": spec.model_dump(mode="json")}
                raise
            refused = answer.status == UNAUTHORIZED and not answer.carried_out
            if not (refused and is_first and not operation.anonymous and self._authorization.is_renewable):
                return answer
            # A 401 means that the request was not carried out, so any method may be repeated, once.
            self._authorization.forget(credentials)
            is_first = False
