"""What tests of natural-language requests get."""

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr
from pytest_django import Settings

from catalogue.connections import close_connectors
from connectors.background import run_in_background_loop
from orchestration.language_model import close_model_connection, forget_dialects
from tests.engines.model_server import KEY, MODEL, ModelServer
from tests.executions.engines import until
from tests.executions.steps import is_nothing_under_way


@pytest.fixture(autouse=True)
async def _nothing_left_under_way() -> AsyncIterator[None]:
    """Runs go on when nobody waits for them; they must not meet the rows of the next test."""
    yield
    await until(is_nothing_under_way, "what is under way comes to its end")
    await close_connectors()
    run_in_background_loop(close_connectors())


@pytest.fixture
async def model_server(settings: Settings) -> AsyncIterator[ModelServer]:
    """A model server of the test's own, which the settings point to; `model_retries` is 0."""
    forget_dialects()
    with ModelServer().running() as server:
        settings.CATALOGUE = settings.CATALOGUE | {
            "openai_base_url": server.url,
            "openai_api_key": SecretStr(KEY),
            "openai_model": MODEL,
            "model_retries": 0,
        }
        yield server
        await close_model_connection()
        run_in_background_loop(close_model_connection())
