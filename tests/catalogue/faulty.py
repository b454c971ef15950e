"""A connector as another package might bring it: with a bug."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic import BaseModel, SecretStr

from connectors.definitions import WorkflowDefinition
from connectors.protocol import Capabilities


class FaultyConfig(BaseModel):
    api_key: SecretStr = SecretStr("")
    mistake: str = ""


class FaultyConnector:
    kind: ClassVar[str] = "faulty"
    label: ClassVar[str] = "Faulty"
    Config: ClassVar[type[BaseModel]] = FaultyConfig
    capabilities = Capabilities()

    def __init__(self, config: FaultyConfig) -> None:
        self._mistake = config.mistake
        self._answer = {f"answer for {config.api_key.get_secret_value()}": ""}

    async def discover(self) -> AsyncIterator[Any]:
        if self._mistake == "yields dicts":
            yield {"id": "wf-1", "name": "half"}
            return
        yield WorkflowDefinition(id="wf-1", name="half", description="Half of the list.")
        self._fail()

    async def check(self) -> Any:
        if self._mistake != "no health":
            self._fail()

    def _fail(self) -> None:
        """Like a key that the engine's answer does not have, or an SDK that exits."""
        if self._mistake == "exits":
            raise SystemExit("no licence")
        raise KeyError(*self._answer)

    async def start(self, *given: Any, **named: Any) -> Any: ...

    async def poll(self, run: Any) -> Any: ...

    async def cancel(self, run: Any) -> None: ...

    async def aclose(self) -> None: ...
