"""The contract for engines that speak the simplified workflow API, against the example engine."""

from unittest.mock import ANY
from uuid import UUID

import pytest

from connectors.protocol import Connector, WorkflowRef
from connectors.simplified import SimplifiedConfig, SimplifiedConnector
from connectors.testing import ConnectorContract, EngineHarness, Sample
from tests.processes import ExampleEngine

COUNTDOWN = WorkflowRef(id="1003", name="countdown")
WRONG_KEY = "wrong-key-fedcba9876543210"


class SimplifiedHarness(EngineHarness):
    """The example engine, which honours the keys of starts."""

    idempotency_header = "Idempotency-Key"
    run_lookup_path = "/runs?workflow_id={workflow_id}&idempotency_key={key}"
    cancel_path = "/api/v1/service/workflows/{workflow_id}/runs/{run_id}/cancel"
    completing = Sample(COUNTDOWN, {"seconds": 0.05})
    output = {"seconds": 0.05, "started_at": ANY, "finished_at": ANY}
    failing = Sample(COUNTDOWN, {"seconds": 0, "fail": True, "message": "The tea went cold."})
    failure = "The tea went cold."
    lasting = Sample(COUNTDOWN, {"seconds": 600})

    def __init__(self, engine: ExampleEngine) -> None:
        self.engine = engine
        self.secrets = frozenset({engine.api_key, WRONG_KEY})

    def connector(self) -> Connector:
        return self._connector(self.engine.base_url, self.engine.api_key, 10.0)

    def connector_with_wrong_credentials(self) -> Connector:
        return self._connector(self.engine.base_url, WRONG_KEY, 10.0)

    def connector_at(self, port: int) -> Connector:
        return self._connector(f"http://127.0.0.1:{port}", self.engine.api_key, 10.0)

    def another_workflow(self) -> WorkflowRef:
        return WorkflowRef(id="1001", name="text_statistics")

    def runs_started_with(self, key: UUID) -> int:
        return len(self.engine.runs(idempotency_key=str(key)))

    def _connector(self, base_url: str, api_key: str, timeout_seconds: float) -> Connector:
        return SimplifiedConnector(
            SimplifiedConfig(
                base_url=base_url,
                api_key=api_key,
                idempotency_header=self.idempotency_header,
                run_lookup_path=self.run_lookup_path,
                cancel_path=self.cancel_path,
                request_timeout_seconds=timeout_seconds,
            )
        )


class SparseSimplifiedHarness(SimplifiedHarness):
    """The same engine, configured as one that promises nothing and cannot cancel."""

    idempotency_header = ""
    run_lookup_path = ""
    cancel_path = ""


class RecordingSimplifiedHarness(SimplifiedHarness):
    """The same engine, configured as one that promises nothing about keys but looks runs up by them."""

    idempotency_header = ""


class TestSimplified(ConnectorContract):
    @pytest.fixture(params=[SimplifiedHarness, SparseSimplifiedHarness, RecordingSimplifiedHarness])
    def harness(self, request: pytest.FixtureRequest, example_engine: ExampleEngine) -> EngineHarness:
        harness: EngineHarness = request.param(example_engine)
        return harness
