"""What a start may use."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from config.management.commands.quickstart import HOST, ExampleEngine, chosen_engine, claimed, claimed_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_folder_is_free_again_once_the_other_start_has_ended(tmp_path):
    refused = pytest.raises(CommandError, match="at http://localhost:8000")
    with claimed(tmp_path, port=8000), refused, claimed(tmp_path, port=8001):
        pass
    with claimed(tmp_path, port=8002):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    """B5"""
    (tmp_path / "quickstart.lock").mkdir()  # In the place of a folder that is read-only: root can write it
    refused = pytest.raises(
        CommandError, match=f"The data folder {tmp_path} cannot be written: Is a directory"
    )
    with refused, claimed(tmp_path, port=8000):
        pass


def test_taken_port_is_refused_with_an_example_that_works(taken_port):
    another = taken_port + 1 if taken_port < 65535 else taken_port - 1
    refused = pytest.raises(CommandError, match=rf"Port {taken_port} is in use, .*: PORT={another} make run")
    with refused, claimed_port(taken_port):
        pass


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        (HOST, "Port {} of 127.0.0.1 is in use, perhaps by .*. Choose another port with --port or PORT"),
        ("0.0.0.0", "Port {} of 0.0.0.0 is in use"),
        ("192.0.2.1", "--host: cannot listen on port {} of 192.0.2.1: .*address"),
        ("nowhere.invalid", "--host: cannot listen on port {} of nowhere.invalid: "),
    ],
)
def test_a_web_process_says_at_once_that_it_cannot_listen(taken_port, host, problem):
    """B5: before it loads anything, and without a database."""
    with pytest.raises(CommandError, match=problem.format(taken_port)):
        call_command("serve", "--host", host, "--port", str(taken_port))


@pytest.mark.parametrize("command", ["serve", "worker", "beat"])
def test_a_process_says_at_once_that_it_cannot_serve_its_metrics(taken_port, command, settings):
    """B5: a worker and beat went on without them, below a traceback."""
    settings.METRICS_ADDRESS = f"{HOST}:{taken_port}"
    problem = rf"CATALOGUE_METRICS_ADDRESS={settings.METRICS_ADDRESS}: it is in use, .* Choose an address"
    with pytest.raises(CommandError, match=problem):
        call_command(command, **({"port": 0} if command == "serve" else {}))


def choose_engine(data_dir: Path) -> tuple[ExampleEngine | None, ExampleEngine]:
    """As a start that ends at once."""
    with chosen_engine(data_dir) as chosen:
        return chosen


def test_engine_keeps_its_key_and_its_port(tmp_path):
    nothing, first = choose_engine(tmp_path)
    before, second = choose_engine(tmp_path)
    assert nothing is None
    assert before == first == second
    assert len(first.api_key) >= 32


def test_engine_moves_when_somebody_listens_on_its_port(tmp_path):
    _, first = choose_engine(tmp_path)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, first.port))
        listener.listen()
        before, second = choose_engine(tmp_path)
    assert before == first
    assert second.port != first.port
    assert second.api_key == first.api_key


def test_engine_leaves_the_web_server_its_port(tmp_path):
    _, first = choose_engine(tmp_path)
    with claimed_port(first.port):
        _, second = choose_engine(tmp_path)
    assert second.port != first.port


def test_starts_at_the_same_time_get_ports_of_their_own(tmp_path):
    """Before any of their engines listens: else one would be sent the key of the other."""
    meeting, done = threading.Barrier(4), threading.Barrier(4)

    def start(number: int) -> int:
        folder = tmp_path / str(number)
        folder.mkdir()
        meeting.wait()
        with chosen_engine(folder) as (_, engine):
            done.wait()
            return engine.port

    with ThreadPoolExecutor(4) as starts:
        ports = list(starts.map(start, range(4)))
    assert len(set(ports)) == 4


def test_a_web_port_that_another_start_has_chosen_is_taken_before_its_server_listens(tmp_path):
    _, free = choose_engine(tmp_path)
    with claimed_port(free.port), pytest.raises(CommandError, match="is in use"), claimed_port(free.port):
        pass


def test_damaged_notes_are_made_anew(tmp_path):
    (tmp_path / "example-engine.json").write_text("{", encoding="utf-8")
    before, engine = choose_engine(tmp_path)
    assert before is None
    assert engine.api_key
