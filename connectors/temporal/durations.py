"""Lengths of time as Go writes them: `5s`, `100ms`, `1h30m`."""

import re

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h)"
WHOLE = re.compile(rf"\+?(?:{PART})+\Z")
PARTS = re.compile(r"([0-9.]+)([a-zµμ]+)")
LONGEST_TEXT = 64
EXPECTED = "has to be a length of time such as 5s, 100ms or 1h30m"


def read_duration(text: object) -> float:
    """Seconds. Raises ValueError."""
    if text == "0" or (text == 0 and not isinstance(text, bool)):
        return 0.0
    if not isinstance(text, str):
        raise ValueError(EXPECTED)
    if len(text) > LONGEST_TEXT or not WHOLE.match(text):
        days = re.fullmatch(r"([0-9]{1,4})d", text)
        raise ValueError(EXPECTED + (f"; the longest unit is h: {int(days[1]) * 24}h" if days else ""))
    return sum(float(number) * SECONDS[unit] for number, unit in PARTS.findall(text))
