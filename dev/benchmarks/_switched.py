"""A web process whose observing can be switched: what `observed` measures.

With SIGUSR1 it reads from a file whether it is `on` or `off`, and removes the file once that holds.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Histogram

from telemetry import traces


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of counting."""


async def _pass_on(self: Any, scope: Any, receive: Any, send: Any) -> None:
    await self._app(scope, receive, send)


def main(port: int, file: Path) -> None:
    import django

    django.setup()

    from config import monitoring
    from config.logging import configure_logging
    from config.web_server import serve

    absent: list[tuple[Any, str, Any]] = [
        (Counter, "inc", _nothing),
        (Histogram, "observe", _nothing),
        (monitoring.Observed, "__call__", _pass_on),  # Request ids, too
        (traces, "_exporting", []),
        (traces, "outgoing_headers", dict),
        (traces, "current_traceparent", _nothing),
        (traces, "current_trace_id", str),
    ]
    present = [(owner, name, getattr(owner, name)) for owner, name, _ in absent]

    def switch(*_: Any) -> None:
        is_on = file.read_text() == "on"
        configure_logging(level="INFO" if is_on else "ERROR", log_format="json")
        for owner, name, value in present if is_on else absent:
            setattr(owner, name, value)
        file.unlink()

    signal.signal(signal.SIGUSR1, switch)
    serve(host="127.0.0.1", port=port, graceful_seconds=2)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    main(int(sys.argv[1]), Path(sys.argv[2]))
