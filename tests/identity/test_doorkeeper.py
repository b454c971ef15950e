"""Who guesses waits, and takes no time from others."""

import asyncio
from typing import Any

import pytest

from identity import doorkeeper
from identity.doorkeeper import Doorkeeper, Throttled


def request(address: str, path: str = "/admin/login/") -> dict[str, Any]:
    return {"type": "http", "path": path, "client": (address, 1), "headers": []}


class Naps(list[float]):
    """What would be slept, by a clock that stands still."""

    async def sleep(self, seconds: float) -> None:
        self.append(round(seconds, 3))

    def keeper(self) -> Doorkeeper:
        return Doorkeeper(sleep=self.sleep, clock=lambda: 1000.0)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> Naps:
    monkeypatch.setattr(doorkeeper, "HOLD_SECONDS", 2.0)
    monkeypatch.setattr(doorkeeper, "PACE_SECONDS", 0.3)
    return Naps()


async def test_the_refusals_of_an_address_that_goes_on_guessing_are_held_up(naps):
    """A few wrong tokens are a mistake in a configuration; an IPv6 network counts as one."""
    keeper = naps.keeper()
    for number in range(10):
        await keeper.delay(request(f"2001:db8::{number}"))
    await keeper.delay(request("192.0.2.1"))
    assert naps == [2.0, 4.0, 6.0, 8.0, 10.0, 10.0, 10.0]


async def test_guesses_from_many_addresses_are_refused_at_a_pace_and_beyond_it_without_a_record(
    naps, monkeypatch
):
    """Else every address brings its free guesses along."""
    monkeypatch.setattr(doorkeeper, "REFUSAL_SECONDS", 0.5)
    keeper = naps.keeper()
    looked_at = [await keeper.delay(request(f"192.0.2.{number}")) for number in range(27)]
    assert naps == [*(0.5 * number for number in range(1, 21)), 10.0, 10.0]
    assert looked_at == [True] * 25 + [False] * 2


async def test_sign_ins_come_at_a_pace_and_other_pages_at_once(naps):
    keeper = naps.keeper()
    for number in range(3):
        async with keeper.turn(request(f"192.0.2.{number}")):
            pass
    async with keeper.turn(request("192.0.2.1", "/admin/")):
        pass
    assert naps == [0.0, 0.3, 0.6]


async def test_an_address_with_many_sign_ins_has_one_turn_at_a_time_and_others_go_before_the_rest(naps):
    keeper, order = naps.keeper(), list[str]()
    held = asyncio.Event()

    async def sign_in(address: str, *, stays: bool = False) -> None:
        async with keeper.turn(request(address)):
            order.append(address)
            if stays:
                await held.wait()

    async with asyncio.TaskGroup() as together:
        together.create_task(sign_in("192.0.2.1", stays=True))
        others = [together.create_task(sign_in("192.0.2.1")) for _ in range(5)]
        good = together.create_task(sign_in("192.0.2.2"))
        await good
        assert order == ["192.0.2.1", "192.0.2.2"] and not any(other.done() for other in others)
        held.set()
    assert order == ["192.0.2.1", "192.0.2.2", *["192.0.2.1"] * 5]


async def test_who_would_wait_for_too_long_is_refused(naps, monkeypatch):
    monkeypatch.setattr(doorkeeper, "PATIENCE_SECONDS", 0.5)
    keeper = naps.keeper()
    for number in range(2):
        async with keeper.turn(request(f"192.0.2.{number}")):
            pass
    with pytest.raises(Throttled):
        async with keeper.turn(request("192.0.2.9")):
            pass
