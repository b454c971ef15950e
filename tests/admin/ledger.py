"""A connector of an invented engine that asks for every type of setting."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, SecretStr, model_validator

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import Unsupported
from connectors.protocol import Capabilities, Health, RunRef, RunSnapshot, Started, WorkflowRef


class Region(StrEnum):
    NORTH = "north"
    SOUTH = "south"


class LedgerConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    address: AnyHttpUrl = Field(title="Address", description="Such as <b>https://ledger.example.com</b>.")
    password: SecretStr = Field(title="Password", min_length=8)
    token: SecretStr | None = Field(default=None, title="Token")
    protocol: Literal["v1", "v2"] = "v2"
    region: Region = Region.NORTH
    retries: int = Field(default=3, ge=0, le=5)
    patience: float | None = Field(default=None, gt=0)
    strict: bool = True
    labels: list[str] = Field(default_factory=list)
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _patient_only_when_retrying(self) -> "LedgerConfig":
        if self.retries == 0 and self.patience:
            raise ValueError("patience needs retries")
        return self


class LedgerConnector:
    """Keeps the books; knows no workflows."""

    kind: ClassVar[str] = "ledger"
    label: ClassVar[str] = "Ledger"
    Config: ClassVar[type[BaseModel]] = LedgerConfig

    def __init__(self, config: LedgerConfig) -> None:
        self._config = config

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def check(self) -> Health:
        return Health(ok=True, message="The books are open.", latency_seconds=0.012)

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        for nothing in ():
            yield nothing

    async def start(self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID) -> Started:
        raise Unsupported("The ledger runs nothing.")

    async def poll(self, run: RunRef) -> RunSnapshot:
        raise Unsupported("The ledger runs nothing.")

    async def cancel(self, run: RunRef) -> None:
        raise Unsupported("The ledger runs nothing.")

    async def aclose(self) -> None:
        return
