"""A first start, by one command, in a folder of any name."""

import signal

import pytest

from tests.e2e.product import place_for_one, started
from tests.e2e.test_clients import client_of_2026

NAME = """It's 100 % "my" data (ü), $HOME"""


@pytest.mark.timeout(240)
async def test_the_product_starts_runs_a_workflow_for_an_agent_and_stops(tmp_path):
    """A1.2, A2.2, B4, N1: with one command, in a folder of any name, without a server beside it."""
    with place_for_one(tmp_path / NAME, is_empty=True) as place, started(place) as product:
        product.wait_until_up()
        async with client_of_2026(product) as client:
            result = await client.call_tool("text_statistics", {"text": "One start."})
        assert result.structured_content and result.structured_content["words"] == 2
        product.stop(signal.SIGINT)
        assert product.process.returncode == 0
        assert "Traceback" not in product.output
