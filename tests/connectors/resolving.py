"""A name service for tests."""

import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

Answers = Sequence[Sequence[str]]


class Names:
    """Each name gets its first answer first and its last one for ever; others are resolved as usual."""

    def __init__(self, known: dict[str, Answers]) -> None:
        self._known = known
        self._really: Callable[..., Any] = socket.getaddrinfo
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if host not in self._known:
            return self._really(host, port, *args, **kwargs)
        answers = self._known[host]
        answer = answers[min(self.asked.count(host), len(answers) - 1)]
        self.asked.append(host)
        return [(family_of(address), socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def names(monkeypatch: pytest.MonkeyPatch, **known: Answers) -> Names:
    """`names(monkeypatch, **{"api.example.com": [["127.0.0.1"], ["10.0.0.1"]]})` until the test ends."""
    service = Names(dict(known))
    monkeypatch.setattr(socket, "getaddrinfo", service)
    return service
