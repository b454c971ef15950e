"""Wrong access tokens are counted and logged, at both doors that take tokens."""

from collections.abc import Iterator

import httpx2
import pytest
from loguru import logger

from identity.authentication import TOKENS, forget_pauses
from identity.bearers import forget_bearers
from identity.tokens import create_token
from tests import plain_http
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.test_endpoint import modern

pytestmark = pytest.mark.databases("identity.authentication", "identity.tokens")


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    yield lines
    logger.remove(sink)


def list_tools(server: McpServer, token: str) -> httpx2.Response:
    body, headers = modern("tools/list")
    return server.post(body, headers=headers, token=token)


def list_workflows(server: McpServer, token: str) -> httpx2.Response:
    return plain_http.get(f"{server.base_url}/api/workflows/", headers={"authorization": f"Bearer {token}"})


def test_who_sends_wrong_tokens_again_and_again_is_told_to_wait(mcp_server, token):
    """B8: both doors and all processes count together; a good token opens the door all the same."""
    for number in range(TOKENS.failures):
        ask = (list_tools, list_workflows)[number % 2]
        assert ask(mcp_server, f"wfc_{number}").status_code == 401
    for ask in (list_tools, list_workflows):
        forget_pauses()
        for _ in range(2):
            refused = ask(mcp_server, "wfc_another")
            assert refused.status_code == 429
            assert 0 < int(refused.headers["retry-after"]) <= TOKENS.seconds
            assert "Too many failed attempts: try again in" in refused.text
        assert ask(mcp_server, token).status_code == 200


def test_the_log_says_which_token_was_refused_and_not_what_it_is(mcp_server, logged):
    """B8: up to the limit; then nobody fills the disk with it."""
    token, text = create_token(name="claude")
    token.revoke()
    forget_bearers()
    for wrong in (text, "wfc_" + "x" * 40, "sk-live-of-somebody-else"):
        list_tools(mcp_server, wrong)
    told = [line for line in logged if "Refused an access token from 127.0.0.1" in line]
    assert "'claude' is revoked" in told[0]
    assert "'wfc_xxxxxxxx'... is unknown" in told[1]
    assert "does not begin with wfc_" in told[2]
    assert not any(secret in "".join(logged) for secret in (text, "x" * 9, "sk-live"))
    for _ in range(TOKENS.failures + 5):
        list_tools(mcp_server, "wfc_wrong")
    assert sum("Refused an access token" in line for line in logged) == TOKENS.failures + 1
