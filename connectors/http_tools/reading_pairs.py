"""Names and values as queries and forms have them, `a=1&b=x+y`."""

from connectors.http_tools.path_template import decoded
from connectors.http_tools.refusing import NotThisTool
from connectors.http_tools.specs import Scalar


def read_pairs(text: str, what: str) -> dict[str, Scalar | list[Scalar]]:
    """By name; one that stands there several times has a list. Raises NotThisTool that names `what`."""
    found: dict[str, list[Scalar]] = {}
    for pair in filter(None, text.split("&")):
        name, _, value = pair.partition("=")
        found.setdefault(_read(name, what), []).append(_read(value, what))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def _read(text: str, what: str) -> str:
    try:
        return decoded(text.replace("+", " "), what)
    except ValueError as error:
        raise NotThisTool(f"{error}.") from None
