"""A connector as another package might bring it: with a bug."""

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic import BaseModel

from connectors.definitions import WorkflowDefinition
from connectors.protocol import Capabilities


class FaultyConfig(BaseModel):
    """Whatever is given is ignored."""


class FaultyConnector:
    kind: ClassVar[str] = "faulty"
    label: ClassVar[str] = "Faulty"
    Config: ClassVar[type[BaseModel]] = FaultyConfig
    capabilities = Capabilities()

    def __init__(self, config: Any) -> None:
        pass

    async def discover(self) -> AsyncIterator[WorkflowDefinition]:
        yield WorkflowDefinition(id="wf-1", name="half", description="Half of the list.")
        raise ZeroDivisionError("a bug")

    async def check(self) -> Any: ...

    async def start(self, *given: Any, **named: Any) -> Any: ...

    async def poll(self, run: Any) -> Any: ...

    async def cancel(self, run: Any) -> None: ...

    async def aclose(self) -> None: ...
