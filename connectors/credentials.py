"""What shows an API who asks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Credentials:
    """Added as a request leaves, and only to requests to the configured origin."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Sequence[tuple[str, str]] = field(default=(), repr=False)

    def secrets(self) -> Iterator[str]:
        """What has to be masked: every value, and of one such as `Bearer x` also the x."""
        for value in self.headers.values():
            yield value
            yield value.split()[-1] if value.split() else ""
        for _, value in self.query:
            yield value


NO_CREDENTIALS = Credentials()
