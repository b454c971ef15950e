"""What an HTTP API answered, whatever it was."""

from dataclasses import dataclass, field

import httpx2


@dataclass(frozen=True, slots=True)
class Answer:
    """As it came: headers and body may repeat our secrets, so mask them before they are shown."""

    status: int
    headers: httpx2.Headers = field(repr=False)
    body: bytes = field(repr=False)
    seconds: float
    """From the sending of the first request to the last byte of this answer."""
    url: str
    """Where it came from, without the query, which may carry credentials."""
    carried_out: bool = False
    """A redirect said that the request was carried out; this answer is about what came of it, so whatever its
    status is, the request must not be sent again."""
    not_followed: str = ""
    """Of a redirect that should have been followed and was not: why, in a sentence."""
