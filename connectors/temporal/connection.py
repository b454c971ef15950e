"""The shared connection to a Temporal service, and its errors as ConnectorErrors."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import (
    HttpConnectProxyConfig,
    RetryConfig,
    RPCError,
    RPCStatusCode,
    TLSConfig,
    WorkflowService,
)

from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
)
from connectors.network.oauth import ClientCredentials
from connectors.network.policy import ENGINE_ADDRESSES, outbound_proxy
from connectors.network.redaction import Redactor, printable, shorten
from connectors.settings import state_of_file
from connectors.temporal.config import ServiceSettings

Answer = TypeVar("Answer")
IDENTITY = "workflow-catalogue"
REFUSED_CREDENTIALS = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)
REFUSED_REQUEST = (
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.OUT_OF_RANGE,
    RPCStatusCode.ALREADY_EXISTS,
)
BUSY = RPCStatusCode.RESOURCE_EXHAUSTED
NO_CONNECTION = (  # Reasons by the SDK's messages, the most specific first
    (r"Connection refused", "connection refused"),
    (r"dns error", "the name could not be resolved"),
    (r"InvalidContentType|CorruptMessage", "it does not use TLS"),
    (r"UnknownIssuer", "its certificate is from an untrusted authority; set the CA file"),
    (r"NotValidForName", "its certificate is for another name; set the server name"),
    (r"InvalidCertificate\(Expired", "its certificate has expired"),
    (r"InvalidCertificate", "its certificate cannot be used"),
    (r"timed out|TimedOut|deadline has elapsed", "no connection in time"),
    (r"h2 protocol|FRAME_SIZE|GoAway|InvalidMessage", "it does not speak gRPC"),
)
REFUSED_CERTIFICATE = re.compile(
    r"CertificateRequired|BadCertificate|CertificateUnknown|UnknownCA|HandshakeFailure|AccessDenied"
    r"|CertificateExpired|CertificateRevoked|DecryptError"
)
CLOSED = re.compile(r"BrokenPipe|UnexpectedEof|ConnectionReset|ConnectionAborted|connection closed")


class Connection:
    """One service, namespace and set of credentials. Make one per event loop. Methods raise only
    ConnectorError, and no error shows a secret."""

    def __init__(self, config: ServiceSettings) -> None:
        self._config = config
        url, seconds = config.oauth_url, config.timeout_seconds
        self._oauth = ClientCredentials(config, url=url, seconds=seconds) if url else None
        self._client: Client | None = None
        self._made_with: object = None
        self._token = config.api_key.get_secret_value()
        self._connecting: asyncio.Task[Client] | None = None

    def __repr__(self) -> str:
        return f"Connection({self._config.host_port}, {self._config.namespace})"

    @property
    def namespace(self) -> str:
        return self._config.namespace

    @property
    def rpc_timeout(self) -> timedelta:
        """The limit of one attempt, for calls passed to `ask`."""
        return timedelta(seconds=self._config.timeout_seconds)

    async def ask(
        self,
        call: Callable[[Client], Awaitable[Answer]],
        *,
        repeatable: bool = True,
        seconds: float | None = None,
    ) -> Answer:
        """The result of `call`, which sets the time limit of each attempt. `seconds`: for all attempts;
        default: twice the limit of one. With `repeatable=False`, an error after which the service may have
        acted is OutcomeUnknown."""
        # One second beyond the SDK's own time limit.
        limit = (seconds or 2 * self._config.timeout_seconds) + 1.0
        for is_last in (False, True):
            client, token = await self._connected()
            # Raised below, since the SDK's errors may quote the request as their context.
            try:
                async with asyncio.timeout(limit):
                    return await call(client)
            except TimeoutError:
                failure = unanswered(f"no response within {limit:g} s.", repeatable=repeatable)
            except RPCError as error:
                failure = refusal(error, repeatable=repeatable)
                refuses_token = error.status == RPCStatusCode.UNAUTHENTICATED
                if refuses_token and self._oauth is not None and not is_last:
                    # The service did nothing, so a retry with a fresh token is safe.
                    self._oauth.forget(token)
                    continue
            raise self._without_secrets(failure)
        raise AssertionError("the loop returns or raises")

    async def read(
        self, method: Callable[[WorkflowService], Callable[..., Awaitable[Answer]]], what: Any
    ) -> Answer:
        """The answer to a request that changes nothing."""
        timeout = self.rpc_timeout
        return await self.ask(
            lambda client: method(client.workflow_service)(what, retry=True, timeout=timeout)
        )

    async def aclose(self) -> None:
        self._client = None
        if self._connecting is not None:
            self._connecting.cancel()
        if self._oauth is not None:
            await self._oauth.aclose()

    async def _connected(self) -> tuple[Client, str]:
        """The client with a valid token, and that token."""
        token = await self._oauth.token() if self._oauth is not None else self._token
        config = self._config
        files = (config.tls_cert_file, config.tls_key_file, config.tls_ca_file)
        made_with = list(map(state_of_file, filter(None, files)))
        client = self._client
        if client is None or made_with != self._made_with:
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect(token, made_with))
                # An error without a waiter would be logged.
                self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
            # All callers share one attempt, so that they wait for one time limit only.
            client = await asyncio.shield(self._connecting)
        if token != self._token:
            client.api_key = self._token = token
        return client, token

    async def _connect(self, token: str, made_with: object) -> Client:
        config = self._config
        host, _, port = config.host_port.rpartition(":")
        retries = RetryConfig(
            initial_interval_millis=max(1, round(config.retry_initial_seconds * 1000)),
            max_interval_millis=max(1, round(config.retry_maximum_seconds * 1000)),
            multiplier=config.retry_backoff,
            max_retries=config.retry_maximum_attempts,
            max_elapsed_time_millis=max(1, round(config.timeout_seconds * 1000)),
        )
        try:
            self._token, tls = token, _tls(self._config)
            async with asyncio.timeout(self._config.timeout_seconds):
                proxy = await _proxy_for(host.strip("[]"), int(port))
                client = await Client.connect(
                    self._config.host_port,
                    namespace=self._config.namespace,
                    api_key=token or None,
                    tls=tls,
                    retry_config=retries,
                    connect_timeout=timedelta(seconds=self._config.timeout_seconds),
                    identity=IDENTITY,
                    runtime=quiet_runtime(os.getpid()),
                    http_connect_proxy_config=proxy,
                )
            self._client, self._made_with = client, made_with
            return client
        except TimeoutError:
            failure: ConnectorError = Unreachable(
                f"Could not connect to Temporal at {self._config.host_port}: no response within "
                f"{self._config.timeout_seconds:g} s."
            )
        except ConnectorError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises RuntimeError, httpx2 its own
            failure = no_connection(str(error), address=self._config.host_port, tls=self._config.uses_tls)
        finally:
            self._connecting = None
        raise self._without_secrets(failure)

    def _without_secrets(self, error: ConnectorError) -> ConnectorError:
        secrets = {
            self._token,
            self._config.api_key.get_secret_value(),
            self._config.oauth_client_secret.get_secret_value(),
        }
        return type(error)(Redactor(secrets).text(error.message))


@cache
def quiet_runtime(process: int) -> Runtime:
    """The SDK's threads, shared within the process, without logs and metrics."""
    return Runtime(
        telemetry=TelemetryConfig(logging=None, metrics=None),
        worker_heartbeat_interval=None,
        disable_environment_info=True,
    )


async def _proxy_for(host: str, port: int) -> HttpConnectProxyConfig | None:
    """Raises Misconfigured for an address that may not be contacted. The SDK resolves the name again: this
    prevents mistakes, not attacks by the name's owner."""
    proxy = outbound_proxy()
    if proxy is None or not proxy.carries(host, port):
        await ENGINE_ADDRESSES.resolve(host, port)
        return None
    await ENGINE_ADDRESSES.check_for_proxy(host, port)
    return HttpConnectProxyConfig(str(proxy), (proxy.user, proxy.password) if proxy.user else None)


def _tls(config: ServiceSettings) -> TLSConfig | bool:
    if not config.uses_tls:
        return False
    return TLSConfig(
        server_root_ca_cert=_content(config.tls_ca_file, "CA file"),
        domain=config.tls_server_name or None,
        client_cert=_content(config.tls_cert_file, "client certificate file"),
        client_private_key=_content(config.tls_key_file, "client key file"),
    )


def _content(path: str, what: str) -> bytes | None:
    if not path:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise Misconfigured(f"The {what} {path} cannot be read: {error.strerror}.") from None
    if b"-----BEGIN " not in content:
        raise Misconfigured(f"The {what} {path} is not a PEM file.")
    return content


def refusal(error: RPCError, *, repeatable: bool) -> ConnectorError:
    words = _words(error.message)
    if error.status in REFUSED_CREDENTIALS:
        return Rejected(f"Temporal rejected the credentials: {words}", needs_operator=True)
    if error.status == RPCStatusCode.NOT_FOUND:
        details = error.grpc_status.details
        is_of_namespace = any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in details)
        kind = Misconfigured if is_of_namespace else NotFound
        return kind(f"Temporal: {words}")
    if error.status in REFUSED_REQUEST or (error.status == BUSY and "larger than max" in error.message):
        return Rejected(f"Temporal refused the request: {words}")
    if error.status == RPCStatusCode.UNIMPLEMENTED:
        return Unsupported(f"This Temporal service cannot do that: {words}")
    if error.status == BUSY:
        return Unreachable(f"Temporal is busy: {words}")
    if "failed to decode Protobuf message" in words and repeatable:
        return InvalidAnswer(f"Temporal's answer cannot be read: {words}")
    was_sent = not re.search("ConnectError|tcp connect error|dns error", words)
    return unanswered(words, repeatable=repeatable, was_sent=was_sent)


def unanswered(reason: str, *, repeatable: bool, was_sent: bool = True) -> ConnectorError:
    if repeatable or not was_sent:
        return Unreachable(f"Temporal did not answer: {reason}")
    return OutcomeUnknown(f"Temporal did not answer, but may have carried it out: {reason}")


def no_connection(message: str, *, address: str, tls: bool) -> ConnectorError:
    if "KeyMismatch" in message:
        return Misconfigured("The client key file holds the key of another certificate.")
    if re.search(r"code: (?:Unauthenticated|PermissionDenied)|status: '?(?:Unauthenticated|Permis)", message):
        said = re.search(r'message: "((?:[^"\\]|\\.)*)"', message)
        words = _words(said[1] if said else message)
        return Rejected(f"Temporal rejected the credentials: {words}", needs_operator=True)
    if found := REFUSED_CERTIFICATE.search(message):
        return Rejected(f"Temporal refused the client certificate, or requires one ({found[0]}).")
    reason = next((meaning for pattern, meaning in NO_CONNECTION if re.search(pattern, message)), "")
    if not reason and CLOSED.search(message):
        reason = f"it closed the connection; it may require {'a client certificate' if tls else 'TLS'}"
    reason = reason or _words(message)
    return Unreachable(f"Could not connect to Temporal at {address}: {reason}.")


def _words(text: str) -> str:
    return shorten(" ".join(printable(text).split()), 500) or "it gave no reason"
