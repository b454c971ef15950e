"""Serves the engine: `python -m examples.engine --help`."""

import contextlib
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from examples.engine.app import build_app
from examples.engine.settings import Settings, read_settings


def main() -> None:
    settings = read_settings()
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Busy workflow threads would otherwise make the event loop wait 5 ms for each of its turns.
    sys.setswitchinterval(0.0005)
    signal.signal(signal.SIGTERM, leave)
    with contextlib.suppress(KeyboardInterrupt):
        serve(settings)


def serve(settings: Settings) -> None:
    config = uvicorn.Config(
        build_app(settings.database, settings.api_key, settings.honours_keys),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=1,
    )
    # Taking the port first keeps an engine that cannot serve from resuming runs another one works on.
    listener = config.bind_socket()
    # Connections inherit this; without it each answer waits some 40 ms for the client's delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    uvicorn.Server(config).run([listener])


def leave(signal_number: int, frame: FrameType | None) -> None:
    """Exit cleanly on a SIGTERM that comes before or after the server, which has its own way of stopping."""
    sys.exit(0)


if __name__ == "__main__":
    main()
