import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def in_the_foreground() -> Iterator[None]:
    """A shell has what it starts there ignore the terminal's signals, and so has what that starts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
