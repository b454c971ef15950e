"""A connector of an invented engine that asks for every type of setting."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, SecretStr, model_validator

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import Unsupported
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    ignore_progress,
)
from connectors.settings import FieldProblem, hint


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
    currency: str = Field(default="EUR", min_length=3, title="Currency")
    prefix: str = Field(default="bk-", title="Prefix", description="Empty: none.")
    audited: bool | None = Field(default=None, title="Audited")
    rules: str = Field(default="", title="Rules", json_schema_extra=hint(multiline=True))
    seal: SecretStr = Field(
        default=SecretStr(""), title="Seal", json_schema_extra=hint(multiline=True, group="Sealing")
    )
    seal_seconds: float = Field(
        default=30.0, gt=0, le=86_400, title="Validity (s)", json_schema_extra=hint(group="Sealing")
    )
    storage: Literal["here", "there"] = Field(default="here", title="Storage")
    place: str = Field(
        default="", title="Place", json_schema_extra=hint(address=True, only_if={"storage": "there"})
    )
    place_key: SecretStr = Field(
        default=SecretStr(""), title="Key of the place", json_schema_extra=hint(only_if={"storage": "there"})
    )

    @model_validator(mode="after")
    def _patient_only_when_retrying(self) -> "LedgerConfig":
        if self.retries == 0 and self.patience:
            raise ValueError("patience needs retries")
        if self.storage == "there" and not self.place:
            raise FieldProblem("place", "There has to be a place.")
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

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        raise Unsupported("The ledger runs nothing.")

    async def poll(self, run: RunRef) -> RunSnapshot:
        raise Unsupported("The ledger runs nothing.")

    async def cancel(self, run: RunRef) -> None:
        raise Unsupported("The ledger runs nothing.")

    async def aclose(self) -> None:
        return
