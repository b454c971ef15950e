"""The workflows that the worker of the tests can run, as a source knows them, and connectors to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import yaml

from connectors.protocol import WorkflowRef
from connectors.temporal.config import TemporalConfig
from connectors.temporal.connector import TemporalConnector
from tests.engines.temporal.server import TASK_QUEUE
from tests.engines.temporal.workflows import WORKFLOWS


def definitions(**further: dict[str, Any]) -> str:
    """The YAML of all of them, each with any object as its input; `further` keys by workflow."""
    declared = {
        workflow.__name__: {
            "purpose": (workflow.__doc__ or "").splitlines()[0],
            "input": {"type": "object"},
            "taskQueue": TASK_QUEUE,
        }
        | further.get(workflow.__name__, {})
        for workflow in WORKFLOWS
    }
    return yaml.safe_dump({"workflows": declared}, sort_keys=False)


def workflow_ref(name: str, *, timeout_seconds: float | None = None, **settings: Any) -> WorkflowRef:
    """What the catalogue hands to the connector; `settings` as in `TemporalSettings`."""
    own = {"task_queue": TASK_QUEUE} | settings
    return WorkflowRef(id=name, name=name, metadata={"temporal": own}, timeout_seconds=timeout_seconds)


def config(address: str, **settings: Any) -> TemporalConfig:
    """Of a source that has all of the worker's workflows."""
    return TemporalConfig.model_validate({"host_port": address, "definitions": definitions()} | settings)


@asynccontextmanager
async def connector_to(address: str, **settings: Any) -> AsyncIterator[TemporalConnector]:
    connector = TemporalConnector(config(address, **settings))
    try:
        yield connector
    finally:
        await connector.aclose()
