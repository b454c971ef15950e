"""Content blocks of every type, and an engine whose runs answer with what a test says."""

import base64
from typing import Any

import pytest

from catalogue.models import Source, Workflow
from connectors.protocol import RunSnapshot, RunState
from connectors.registry import BUILT_IN
from tests.executions.patient_engine import PatientEngine, renew
from tests.factories import make_workflow

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SOUND = b"RIFF$\x00\x00\x00WAVEfmt "
Blocks = list[dict[str, Any]]


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words} | more


def picture(data: bytes = PNG, mime_type: str = "image/png", **more: Any) -> dict[str, Any]:
    return {"type": "image", "data": in_base64(data), "mimeType": mime_type} | more


def sound(data: bytes = SOUND, **more: Any) -> dict[str, Any]:
    return {"type": "audio", "data": in_base64(data), "mimeType": "audio/wav"} | more


def link(uri: str = "demo://resource/1", **more: Any) -> dict[str, Any]:
    return {"type": "resource_link", "uri": uri, "name": "Report"} | more


def embedded(uri: str = "demo://resource/2", **held: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri} | held}


EVERY_KIND: Blocks = [
    text("Three of them.", annotations={"audience": ["user"], "priority": 0.5}, _meta={"example.com/a": 1}),
    picture(annotations={"audience": ["user", "assistant"], "lastModified": "2026-01-12T15:00:58Z"}),
    sound(_meta={"example.com/b": {"c": [1, None]}}),
    link(title="The report", description="All of it.", mimeType="application/pdf", size=1234),
    embedded(mimeType="text/markdown", text="# Heading\n", _meta={"example.com/d": True}),
    embedded(mimeType="application/gzip", blob=in_base64(b"\x1f\x8b\x00")),
]


def gives(
    engine: PatientEngine, content: Blocks, *, output: Any = None, error: str = "", **more: Any
) -> None:
    """What its runs end with from now on."""
    state = RunState.FAILED if error else RunState.COMPLETED
    engine.now = RunSnapshot(state=state, output=output, error=error, content=content, **more)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> PatientEngine:
    monkeypatch.setitem(BUILT_IN, "holding", "tests.executions.patient_engine:HoldingConnector")
    return renew()


@pytest.fixture
def held(patient: PatientEngine) -> Workflow:
    """`report`, whose starts last as long as its runs."""
    source = Source.objects.create(name="holding", kind="holding")
    return make_workflow(source, name="report", inline_wait_seconds=30)
