"""The embedded broker: kombu's transport on files, safe for several processes.

kombu's own lets a reader take a message that is still being written, which ends the worker, and keeps
messages in the machine's temporary folder. Here a complete file gets its name, and renaming takes it.
"""

import hashlib
import hmac
import os
import uuid
from pathlib import Path
from queue import Empty
from time import time_ns
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

SCHEME = "filesystem"
DEFAULT_QUEUE = "celery"


class Channel(filesystem.Channel):
    """A message is a file `<time>_<unique>.<queue>.msg`."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]  # two stubs disagree
        file = Path(self.data_folder_out, f"{time_ns():020}_{uuid.uuid4().hex}.{queue}.msg")
        _write_whole(file, dumps(payload))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] == f"{queue}.msg" and (text := _take(Path(self.data_folder_in, name))):
                return loads(text)
        raise Empty


class Transport(filesystem.Transport):
    Channel = Channel


def queue_name(secret_key: str) -> str:
    """Derived from the deployment's secret key, so that it can share a broker with other users of Celery."""
    digest = hmac.new(secret_key.encode(), b"workflow-catalogue queue", hashlib.sha256).hexdigest()
    return f"workflow-catalogue-{digest[:12]}"


def embedded_broker_options(folder: Path) -> dict[str, Any]:
    """Options for `filesystem://` below `folder`, which is prepared for it."""
    TRANSPORT_ALIASES[SCHEME] = "config.broker:Transport"
    messages, control = folder / "messages", folder / "control"
    for made in (messages, control):
        made.mkdir(parents=True, exist_ok=True)
    # kombu writes this file at first use, and a concurrent reader would see half of it.
    exchange = control / f"{DEFAULT_QUEUE}.exchange"
    if not exchange.exists():
        _write_whole(exchange, dumps([[DEFAULT_QUEUE, "", DEFAULT_QUEUE]]))
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        # Seconds between two looks into the folder; a stopping worker waits for one as well.
        "polling_interval": 0.2,
    }


def _write_whole(file: Path, text: str) -> None:
    fresh = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


def _take(file: Path) -> str:
    """The text, for the one process that gets the file; empty for all others."""
    ours = file.with_name(f"{file.name}.taken")
    try:
        file.rename(ours)
    except FileNotFoundError:
        return ""
    text = ours.read_text(encoding="utf-8")
    ours.unlink()
    return text
