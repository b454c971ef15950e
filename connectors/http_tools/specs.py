"""The records of one HTTP request and one HTTP response, for all rooms.

Neither holds a credential: those are added as the request leaves, and masked in what comes back.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
SAFE_METHODS = frozenset({"GET", "HEAD"})
"""They change nothing, so that they may be sent again."""

Scalar = str | int | float | bool


class HTTPRequestSpec(BaseModel):
    """A request before credentials are added."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    method: Method
    url: str = Field(min_length=1, max_length=16_000)
    """Absolute, with ids in place of the path's parameters and without a query."""
    headers: dict[str, str] = {}
    query_params: dict[str, Scalar | list[Scalar]] = {}
    """A list is written as one parameter for each of its items."""
    body: Any = None
    """A JSON value; None: no body. With another `body_format` of its operation it is sent as a form."""


class HTTPResponseSpec(BaseModel):
    """A response as it came, with secrets masked."""

    model_config = ConfigDict(frozen=True)

    status_code: int
    headers: dict[str, str] = {}
    """By name in lower case; values of one name are joined by ", "."""
    body: Any = None
    """The JSON value, else the text; of anything else a sentence that says what it is."""
    execution_time_ms: float
    """From the sending of the request to the last byte of the response."""
