"""What the tools of a document are called."""

import re

from connectors.http_tools.openapi.operations import Operation

LONGEST = 255
UNFIT = re.compile(r"[^A-Za-z0-9]+")


class Names:
    """Gives each operation a name that no other has, and the same one at every import."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, operation: Operation) -> str:
        """Its id, else method and path; where another has that, both."""
        of_path = UNFIT.sub("_", f"{operation.method.lower()} {operation.path}").strip("_")
        given = "".join(char for char in operation.id if char.isprintable())
        candidates = [given, of_path] if given else [of_path]
        candidates.append(f"{given or of_path}_{of_path}")
        for candidate in candidates:
            if (name := candidate[:LONGEST].strip()) and name not in self._taken:
                return self._take(name)
        number = 2
        while (name := f"{candidates[0][: LONGEST - 8]}_{number}") in self._taken:
            number += 1
        return self._take(name)

    def _take(self, name: str) -> str:
        self._taken.add(name)
        return name
