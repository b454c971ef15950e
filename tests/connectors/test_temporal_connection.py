"""Reaching Temporal: TLS with certificates of both sides, tokens, outages, words for what went wrong."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import ValidationError

from connectors.errors import Misconfigured, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import Connector, RunRef, RunState
from connectors.temporal.config import TemporalConfig
from connectors.testing import Sample, everything_told_by, free_port, silent_engine, start, until_ended
from tests.connectors.scripted import Received, ScriptedEngine, response
from tests.engines.temporal.definitions import connector_to, workflow_ref
from tests.engines.temporal.proxy import gateway_to
from tests.engines.temporal.server import running_server, running_worker
from tests.engines.temporal.tls import Authority, Certificate, tls_proxy
from tests.processes import ROOT, end_group

ECHO = Sample(workflow_ref("Echo"), {"hello": "you"})
FAIL = Sample(workflow_ref("FailAlone"), {})
LASTING = Sample(workflow_ref("Lasting"), {})
PATIENCE_SECONDS = 20.0
SECRET = "client-secret-0123456789"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shown(certificate: Certificate) -> dict[str, str]:
    return {
        "tls_cert_file": str(certificate.certificate),
        "tls_key_file": str(certificate.key),
    }


@pytest.mark.e2e
def test_what_speaks_to_engines_is_imported_only_when_a_source_is_used():
    """E7: nobody waits at each start of a process for Temporal's SDK, or for aiohttp's certificates."""
    program = "import sys; from connectors.registry import usable_connectors; "
    program += "assert 'temporal' in usable_connectors(); print({'temporalio', 'aiohttp'} & set(sys.modules))"
    outcome = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert outcome.stdout.strip() == "set()"


# --- TLS ---


async def test_a_service_that_wants_client_certificates_is_used_with_ours(temporal_server, authority):
    """E2: mutual TLS, with the files that the source names."""
    ours = authority.issue("catalogue")
    async with (
        tls_proxy(
            temporal_server.port, certificate=authority.issue("temporal"), clients_of=authority.ca
        ) as proxy,
        connector_to(f"127.0.0.1:{proxy.port}", tls_ca_file=str(authority.ca), **shown(ours)) as connector,
    ):
        _, run = await start(connector, ECHO)
        assert (await until_ended(connector, run)).output == {"hello": "you"}
    assert proxy.clients == ["catalogue"]


async def test_a_client_certificate_that_was_renewed_on_disk_is_picked_up(
    temporal_server, authority, tmp_path
):
    """E2: whoever renews certificates need not restart us."""
    used = Certificate(tmp_path / "used.pem", tmp_path / "used.key")

    def put(certificate: Certificate) -> None:
        shutil.copy(certificate.certificate, used.certificate)
        shutil.copy(certificate.key, used.key)

    put(authority.issue("old"))
    async with (
        tls_proxy(
            temporal_server.port, certificate=authority.issue("temporal"), clients_of=authority.ca
        ) as proxy,
        connector_to(f"127.0.0.1:{proxy.port}", tls_ca_file=str(authority.ca), **shown(used)) as connector,
    ):
        assert (await connector.check()).ok
        put(authority.issue("renewed"))
        assert (await connector.check()).ok
    assert proxy.clients == ["old", "renewed"]


async def test_a_connection_that_is_not_to_be_says_what_to_do(temporal_server, authority, tmp_path):
    """B9, E9: certificates that do not fit, TLS where there is none, and the other way round."""
    ours, ca = authority.issue("catalogue"), {"tls_ca_file": str(authority.ca)}
    other = Authority(tmp_path, "stranger").issue("other")
    elsewhere = authority.issue("elsewhere", host="temporal.example.com")
    mixed = {**shown(ours), "tls_key_file": str(other.key)}
    async with (
        tls_proxy(
            temporal_server.port, certificate=authority.issue("temporal"), clients_of=authority.ca
        ) as strict,
        tls_proxy(temporal_server.port, certificate=elsewhere) as misnamed,
    ):
        for port, settings, words in (
            (strict.port, ca, "it may require a client certificate"),
            (strict.port, ca | shown(other), "it may require a client certificate"),
            (strict.port, shown(ours), "set the CA file"),
            (strict.port, {"tls": False}, "it may require TLS"),
            (strict.port, ca | mixed, "the key of another certificate"),
            (strict.port, ca | {"tls_ca_file": str(tmp_path / "none.pem")}, "No such file"),
            (strict.port, ca | {"tls_ca_file": str(ours.key.parent / "stranger.pem")}, "set the CA file"),
            (misnamed.port, ca, "set the server name"),
            (temporal_server.port, {"tls": True}, "it does not use TLS"),
            (temporal_server.port, {"namespace": "nowhere"}, "Namespace nowhere is not found"),
        ):
            async with connector_to(f"127.0.0.1:{port}", **settings) as connector:
                health = await connector.check()
            assert not health.ok
            assert words in health.message, settings
        async with connector_to(
            f"127.0.0.1:{misnamed.port}", tls_server_name="temporal.example.com", **ca
        ) as connector:
            assert (await connector.check()).ok


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        ({}, False),
        ({"environment": "remote"}, True),
        ({"environment": "remote", "tls": False}, False),
        ({"api_key": "key"}, True),
        ({"api_key": "key", "tls": False}, False),
        ({"tls_ca_file": "/ca.pem"}, True),
        ({"tls": True}, True),
    ],
)
def test_tls_is_on_unless_it_is_a_local_service_without_credentials(settings, on):
    """E2: a key does not travel in the clear by oversight."""
    assert TemporalConfig.model_validate({"host_port": "localhost", **settings}).uses_tls is on


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host_port": "https://temporal"}, "without https://"),
        ({"host_port": "temporal:99999"}, "port must be"),
        ({"host_port": ""}, "has no host"),
        ({"host_port": "169.254.169.254:7233"}, "metadata address"),
        ({"tls_cert_file": "/c.pem"}, "must be set together"),
        ({"tls_insecure_skip_verify": True}, "always verified. For a self-signed certificate"),
        ({"oauth_url": "https://auth.example.com/token"}, "OAuth requires the client id"),
        ({"tls": False, "tls_ca_file": "/ca.pem"}, "TLS is turned off"),
        ({"api_key": "a\nb"}, "printable ASCII"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(settings, words):
    """B4, E5: when they are entered, and not when somebody needs them."""
    with pytest.raises(ValidationError, match=re.escape(words)):
        TemporalConfig.model_validate({"host_port": "localhost", **settings})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("localhost", "localhost:7233"),
        (" temporal.example.com:443 ", "temporal.example.com:443"),
        ("::1", "[::1]:7233"),
        ("[::1]:17233", "[::1]:17233"),
    ],
)
def test_addresses_are_kept_in_one_form(given, kept):
    """E2: whether secrets have to be entered again depends on it."""
    assert TemporalConfig(host_port=given).host_port == kept


# --- tokens ---


class TokenServer:
    """Gives out tokens with numbers to who has the secret, and says for how long they are good."""

    def __init__(self, *, seconds: float = 3600.0) -> None:
        self.seconds = seconds
        self.given = 0
        self.asked: list[dict[str, str]] = []
        self.refuses = False

    async def behave(self, received: Received, writer: asyncio.StreamWriter) -> None:
        form = dict(part.split("=", 1) for part in received.body.decode().split("&"))
        self.asked.append(form)
        if self.refuses or form.get("client_secret") != SECRET:
            told = (
                f'{{"error": "invalid_client", "error_description": "{form.get("client_secret")} is wrong"}}'
            )
            writer.write(response(401, told, content_type="application/json"))
            return
        self.given += 1
        answer = f'{{"access_token": "token-{self.given}-of-many", "expires_in": {self.seconds}}}'
        writer.write(response(200, answer, content_type="application/json"))


@asynccontextmanager
async def token_server(**settings: Any) -> AsyncIterator[tuple[TokenServer, dict[str, Any]]]:
    """One, and what a source's settings say about it."""
    tokens = TokenServer(**settings)
    async with ScriptedEngine(tokens.behave) as server:
        yield (
            tokens,
            {
                "oauth_url": f"{server.base_url}/oauth2/token",
                "oauth_client_id": "catalogue",
                "oauth_client_secret": SECRET,
                "oauth_audience": "temporal",
                "tls": False,
            },
        )


async def test_a_token_is_got_once_by_client_credentials_and_sent_with_every_request(temporal_server):
    """E2: OAuth client credentials; many calls at once cost one token."""
    with gateway_to(temporal_server.address) as gateway:
        gateway.keys = {"token-1-of-many"}
        async with (
            token_server() as (tokens, settings),
            connector_to(gateway.address, **settings) as connector,
        ):
            runs = await asyncio.gather(*(start(connector, ECHO) for _ in range(5)))
            assert [(await until_ended(connector, run)).state for _, run in runs] == [RunState.COMPLETED] * 5
    (asked,) = tokens.asked
    assert asked == {
        "grant_type": "client_credentials",
        "client_id": "catalogue",
        "client_secret": SECRET,
        "audience": "temporal",
    }


async def test_a_token_is_renewed_before_it_expires(temporal_server):
    """E2: a connection that lives longer than its token goes on."""
    with gateway_to(temporal_server.address) as gateway:
        async with (
            token_server(seconds=0.3) as (tokens, settings),
            connector_to(gateway.address, **settings) as connector,
        ):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while tokens.given < 3:
                    assert (await connector.check()).ok
    assert {"token-1-of-many", "token-2-of-many", "token-3-of-many"} <= set(gateway.keys_seen)


async def test_a_token_that_the_service_does_not_take_any_more_is_replaced_at_once(temporal_server):
    """E2: revoked early, it costs no call."""
    with gateway_to(temporal_server.address) as gateway:
        async with (
            token_server() as (_, settings),
            connector_to(gateway.address, **settings) as connector,
        ):
            assert (await connector.check()).ok
            gateway.keys = {"token-2-of-many"}
            _, run = await start(connector, ECHO)
            assert (await until_ended(connector, run)).state is RunState.COMPLETED


async def test_refused_client_credentials_are_rejected_without_the_secret(temporal_server):
    """E2, E6: even if the token URL quotes it."""
    async with (
        token_server() as (tokens, settings),
        connector_to(temporal_server.address, **settings) as connector,
    ):
        tokens.refuses = True
        with pytest.raises(Rejected, match="No access token from the OAuth token URL") as caught:
            await start(connector, ECHO)
        assert SECRET not in everything_told_by(caught.value)
        tokens.refuses = False
        assert (await connector.check()).ok
        assert SECRET not in repr(connector) + repr(vars(connector))


async def test_a_token_url_that_is_down_means_that_nothing_was_started(temporal_server):
    """A7.2: a start without a token may be repeated."""
    settings = {
        "oauth_url": f"http://127.0.0.1:{free_port()}/token",
        "oauth_client_id": "catalogue",
        "oauth_client_secret": SECRET,
        "tls": False,
    }
    async with connector_to(temporal_server.address, **settings) as connector:
        with pytest.raises(Unreachable, match="OAuth token URL"):
            await start(connector, ECHO)


# --- outages ---


async def state_once_reached(connector: Connector, run: RunRef) -> RunState:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(Unreachable):
                return (await connector.poll(run)).state


@pytest.mark.engines
async def test_a_server_that_was_killed_and_came_back_is_used_again_and_its_runs_go_on(tmp_path):
    """A7.2, A8.3: the connection is made anew by itself, and the run's result arrives."""
    port, database = free_port(), tmp_path / "temporal.sqlite3"
    async with connector_to(f"127.0.0.1:{port}", timeout_seconds=1) as connector:
        with running_server(tmp_path, port=port, database=database) as server:
            # A server that has just started may take longer than a second.
            async with connector_to(server.address) as patient:
                _, run = await start(patient, LASTING)
            assert await state_once_reached(connector, run) is RunState.RUNNING
            waiting = asyncio.create_task(connector.wait(run, seconds=PATIENCE_SECONDS))
            await asyncio.to_thread(end_group, server.process)
            with pytest.raises(Unreachable):
                await waiting
            with pytest.raises(Unreachable):
                await connector.poll(run)
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await start(connector, ECHO)
        with (
            running_server(tmp_path, port=port, database=database) as server,
            running_worker(server),
        ):
            client = await server.client()
            await client.get_workflow_handle(str(run.key)).signal("finish")
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await until_ended(connector, run)).output == {"notes": [], "total": 0}


async def test_reads_are_repeated_as_often_as_the_source_says(temporal_server):
    """E2: retry options; a service that is busy for a moment costs nothing but the moment."""
    with gateway_to(temporal_server.address) as gateway:
        settings = {"retry_initial_seconds": 0.01, "retry_maximum_attempts": 3}
        async with connector_to(gateway.address, **settings) as connector:
            _, run = await start(connector, ECHO)
            await until_ended(connector, run)
            gateway.seen.clear()
            gateway.refused = {"DescribeWorkflowExecution": [grpc.StatusCode.UNAVAILABLE] * 2}
            assert (await connector.poll(run)).state is RunState.COMPLETED
            assert gateway.seen["DescribeWorkflowExecution"] == 3
            gateway.refused = {"DescribeWorkflowExecution": [grpc.StatusCode.UNAVAILABLE] * 9}
            with pytest.raises(Unreachable):
                await connector.poll(run)
            assert gateway.seen["DescribeWorkflowExecution"] == 6


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unreachable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Unreachable),
        (grpc.StatusCode.PERMISSION_DENIED, Rejected),
        (grpc.StatusCode.NOT_FOUND, NotFound),
    ],
)
async def test_a_completed_run_whose_result_cannot_be_read_has_completed(temporal_server, status, error):
    """A2.3: a failed one is polled again."""
    with gateway_to(temporal_server.address) as gateway:
        settings = {"retry_initial_seconds": 0.01, "retry_maximum_attempts": 2}
        async with connector_to(gateway.address, **settings) as connector:
            (_, done), (_, failed) = [await start(connector, sample) for sample in (ECHO, FAIL)]
            for run in (done, failed):
                await until_ended(connector, run)
            gateway.refused = {"GetWorkflowExecutionHistory": [status] * 20}
            seen = await connector.poll(done)
            with pytest.raises(error):
                await connector.poll(failed)
    assert (seen.state, seen.output, type(seen.unread)) == (RunState.COMPLETED, None, error)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, Rejected),
        (grpc.StatusCode.INVALID_ARGUMENT, Rejected),
        (grpc.StatusCode.INTERNAL, OutcomeUnknown),
        (grpc.StatusCode.UNAVAILABLE, OutcomeUnknown),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Unreachable),
    ],
)
async def test_each_refusal_of_a_start_says_whether_something_may_have_happened(
    temporal_server, status, error
):
    """A7.2: and tells the service's own words."""
    with gateway_to(temporal_server.address) as gateway:
        gateway.refused = {"StartWorkflowExecution": [status] * 20}
        settings = {"retry_initial_seconds": 0.01, "retry_maximum_attempts": 2}
        async with connector_to(gateway.address, **settings) as connector:
            with pytest.raises(error, match="refused by the test"):
                await start(connector, ECHO)


async def test_a_silent_service_costs_everybody_one_time_limit():
    """E7: those who wait for a connection share its outcome."""
    loop = asyncio.get_running_loop()
    async with (
        silent_engine() as port,
        connector_to(f"127.0.0.1:{port}", timeout_seconds=0.3) as connector,
    ):
        began = loop.time()
        checks = await asyncio.gather(*(connector.check() for _ in range(20)))
        # A minute passes with each connection that gets no answer.
        assert loop.time() - began < 250
    assert not any(health.ok for health in checks)
    assert "no response within 0.3 s" in checks[0].message


async def test_definitions_that_cannot_be_used_do_not_make_the_service_unhealthy(temporal_server, tmp_path):
    """B5: what is wrong with a file is a matter of the refresh."""
    file = tmp_path / "workflows.yaml"
    file.write_text("workflows: [")
    settings = {"definitions": "", "definitions_file": str(file)}
    async with connector_to(temporal_server.address, **settings) as connector:
        assert (await connector.check()).ok
        with pytest.raises(Misconfigured):
            await anext(aiter(connector.discover()))
