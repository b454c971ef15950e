"""The part of a tool's definition that its connector needs: the call, relative to the API's base URL."""

import operator
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connectors.errors import Misconfigured
from connectors.http_tools.specs import SAFE_METHODS, Method
from connectors.http_tools.tool_config import ArgumentPlace, BodyFormat, Constant
from connectors.protocol import WorkflowRef


class HttpOperation(BaseModel):
    """`metadata` of the workflow of an HTTP tool."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True)

    method: Method
    path: str = Field(max_length=2_000)
    """Below the source's base URL, `/orders/{order_id}`; empty: the base URL itself."""
    arguments: dict[str, ArgumentPlace] = {}
    """Every argument that there is, with its place and name written out."""
    constants: list[Constant] = []
    body_format: BodyFormat = "json"
    output: dict[str, str] = {}
    idempotency_header: str = ""
    required: list[str] = []
    """Arguments that have to be given, may be null and go where null cannot be said."""
    output_is_promised: bool = Field(default=True, exclude_if=bool)
    """Results are held to the output schema, of which clients are told."""
    anonymous: bool = Field(default=False, exclude_if=operator.not_)
    """Sent without the source's credentials."""
    path_defaults: dict[str, Any] = {}
    """Of arguments in the path that may be left out."""

    @classmethod
    def of(cls, workflow: WorkflowRef) -> Self:
        """Raises Misconfigured where the workflow is no HTTP tool."""
        try:
            return cls.model_validate(workflow.metadata)
        except ValidationError:
            raise Misconfigured(f"{workflow.name} is not declared as an HTTP tool.") from None

    @property
    def is_safe(self) -> bool:
        return self.method in SAFE_METHODS
