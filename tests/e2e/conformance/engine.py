"""An engine whose workflows have the names that the official conformance suite calls.

    python -m tests.e2e.conformance.engine --listen URL --product URL --token-file FILE

It speaks the simplified workflow API. The token lets it do, by REST, what a curator does when the suite asks
for a list to change.
"""

import argparse
from pathlib import Path

from tests import plain_http
from tests.e2e import simplified_engine
from tests.e2e.conformance.workflows import CHANGING, WORKFLOWS


class Curator:
    """Turns a workflow off and on again."""

    def __init__(self, product: str, token_file: Path) -> None:
        self._product = product
        self._token_file = token_file
        self._shown = True

    async def change_the_lists(self, fixture: simplified_engine.Fixture) -> None:
        """Before a run of the workflows that the suite calls for that."""
        if not WORKFLOWS[fixture.name].changes_the_lists:
            return
        self._shown = not self._shown
        verb = "enable" if self._shown else "disable"
        headers = {"authorization": f"Bearer {self._token_file.read_text().strip()}"}
        async with plain_http.AsyncClient(headers=headers) as client:
            answer = await client.post(f"{self._product}/api/workflows/{CHANGING}/{verb}/")
        answer.raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--product", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    chosen = parser.parse_args()
    curator = Curator(chosen.product, chosen.token_file)
    simplified_engine.Engine(WORKFLOWS, before_start=curator.change_the_lists).serve(chosen.listen)


if __name__ == "__main__":
    main()
