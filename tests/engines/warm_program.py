"""The program of `tests.engines.mcp_server`, forked from a process that has the SDK imported.

It costs 20 ms of CPU instead of a second. `python -I -S tests/engines/warm_program.py SOCKET ARGUMENT...`
hands its standard streams, environment and folder to `python -m tests.engines.warm_program SOCKET`, where
a fork runs the program. It ends when the fork does; when it is killed, the fork is killed too.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

SIZE = 4


def start(address: str, arguments: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(server, [len(request).to_bytes(SIZE, "big")], [0, 1, 2])
        server.sendall(request)
        return (server.recv(1) or b"\1")[0]


def serve(address: str) -> None:
    import gc

    from tests.engines import mcp_server

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(100)
    Path(f"{address}.new").rename(address)
    gc.freeze()
    while True:
        starter, _ = listener.accept()
        with starter:
            if not os.fork():
                listener.close()
                become(starter)
                mcp_server.main()
                sys.stdout.flush()
                sys.stderr.flush()
                starter.sendall(b"\0")
                # All else that the interpreter does at its end costs a third of a second.
                os._exit(0)
        _reap()


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def become(starter: socket.socket) -> None:
    from threading import Thread

    size, streams, *_ = socket.recv_fds(starter, SIZE, 3)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += starter.recv(1 << 16)
    arguments, environment, folder = json.loads(text)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["mcp_server", *arguments]
    Thread(target=_end_with, args=[starter], daemon=True).start()


def _end_with(starter: socket.socket) -> None:
    starter.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if __package__:
        serve(sys.argv[1])
    else:
        os._exit(start(sys.argv[1], sys.argv[2:]))
