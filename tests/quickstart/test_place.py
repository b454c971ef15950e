"""What a start may use."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError

from config.quickstart.place import HOST, check_port, choose_engine, claimed


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_folder_is_free_again_once_the_other_start_has_ended(tmp_path: Path) -> None:
    refused = pytest.raises(CommandError, match="at http://localhost:8000")
    with claimed(tmp_path, port=8000), refused, claimed(tmp_path, port=8001):
        pass
    with claimed(tmp_path, port=8002):
        pass


def test_taken_port_is_refused_with_an_example_that_works(taken_port: int) -> None:
    another = taken_port + 1 if taken_port < 65535 else taken_port - 1
    with pytest.raises(CommandError, match=rf"Port {taken_port} is taken\. .* PORT={another} make run"):
        check_port(taken_port)


def test_engine_keeps_its_key_and_its_port(tmp_path: Path) -> None:
    nothing, first = choose_engine(tmp_path, taken=1)
    before, second = choose_engine(tmp_path, taken=1)
    assert nothing is None
    assert before == first == second
    assert len(first.api_key) >= 32


def test_engine_moves_when_somebody_listens_on_its_port(tmp_path: Path) -> None:
    _, first = choose_engine(tmp_path, taken=1)
    with socket.socket() as listener:
        listener.bind((HOST, first.port))
        listener.listen()
        before, second = choose_engine(tmp_path, taken=1)
    assert before == first
    assert second.port != first.port
    assert second.api_key == first.api_key


def test_engine_leaves_the_web_server_its_port(tmp_path: Path) -> None:
    _, first = choose_engine(tmp_path, taken=1)
    _, second = choose_engine(tmp_path, taken=first.port)
    assert second.port != first.port


def test_damaged_notes_are_made_anew(tmp_path: Path) -> None:
    (tmp_path / "example-engine.json").write_text("{", encoding="utf-8")
    before, engine = choose_engine(tmp_path, taken=1)
    assert before is None
    assert engine.api_key
