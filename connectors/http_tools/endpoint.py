"""The address that a tool is declared with, taken apart."""

import re
from dataclasses import dataclass
from typing import Self

from connectors.http_tools.path_template import objections_to
from connectors.network.policy import normalise_base_url

PARTS = re.compile(r"(?P<origin>[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    origin: str
    """`https://api.example.com`, as a source keeps its base URL."""
    path: str
    """With its parameters in braces; empty or from the first slash on."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ValueError with a sentence."""
        found = PARTS.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                "The endpoint is a whole URL, such as https://api.example.com/orders/{order_id}."
            )
        if found["rest"]:
            raise ValueError(
                "The endpoint ends before any '?' or '#'; arguments and constants go into the query."
            )
        if "{" in found["origin"] or "}" in found["origin"]:
            raise ValueError("Parameters in braces stand in the path only, never in the host.")
        return cls(normalise_base_url(found["origin"]), found["path"])

    def path_below(self, base_url: str) -> str:
        """What follows the base URL. Raises ValueError with a sentence where it does not begin with that."""
        base = self.of(normalise_base_url(base_url))
        if self.origin.lower() != base.origin.lower() or not (self.path + "/").startswith(base.path + "/"):
            raise ValueError(f"The endpoint is not below {base_url}, the base URL of the tool's source.")
        path = self.path[len(base.path) :]
        if objections := objections_to(path):
            raise ValueError(" ".join(objections))
        return path
