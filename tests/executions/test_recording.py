"""Recording in company: every unit is carried out, whenever it is put."""

import asyncio

import pytest

from executions.recording import record

pytestmark = pytest.mark.django_db(transaction=True)


async def test_what_is_put_while_a_hop_comes_to_its_end_is_carried_out_too() -> None:
    """Each step goes on, and records again, in the moment in which the hop that served it ends."""
    async with asyncio.timeout(30):
        assert [await record(int, number) for number in range(50)] == list(range(50))
