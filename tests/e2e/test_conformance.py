"""The official conformance suite against the running product, in both revisions of the protocol."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing import free_port
from tests.e2e.conformance.proxy import authorizing
from tests.e2e.conformance.suite import Suite, figures_told, required_scenarios
from tests.e2e.node_tools import node
from tests.e2e.product import environment, place_for_one, started
from tests.processes import run_python, running

__all__ = ["node"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def url(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a product answers without a token, with the suite's workflows and the example's."""
    folder = tmp_path_factory.mktemp("conformance")
    token_file, engine = folder / "token", f"http://127.0.0.1:{free_port()}"
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    serving = [sys.executable, "-m", "tests.engines.conformance_server", str(port)]
    with place_for_one(folder / "data") as place:
        place["CATALOGUE_STATUS_CHECK_INTERVAL"] = "1"
        command = [sys.executable, "-m", "tests.e2e.conformance.engine", f"--listen={engine}"]
        command += [f"--product=http://127.0.0.1:{place['PORT']}", f"--token-file={token_file}"]
        with (
            running(command, answers_at=f"{engine}/healthz", log=folder / "engine.log"),
            running(serving, answers_at=f"{server}/healthz", log=folder / "server.log"),
        ):
            token_file.write_text(_prepare(place, engine, f"{server}/mcp"))
            with started(place) as product:
                product.wait_until_up()
                with authorizing(product.port, product.token) as address:
                    yield f"{address}/mcp"


def _prepare(place: dict[str, str], *addresses: str) -> str:
    """Before the product starts, whose own first listing would compete with ours."""
    words = ["-m", "tests.e2e.conformance.prepare", *addresses]
    prepared = run_python(words, environment=environment(place))
    assert prepared.returncode == 0, prepared.stderr[-3000:]
    return prepared.stdout.strip()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_every_scenario_passes_but_for_those_that_are_listed_with_a_reason(node, url, revision, tmp_path):
    """A2.1, A2.2, A2.3, A2.4: by the judgement of the protocol's own authors."""
    verdict = Suite(node, url, revision, tmp_path).judge()
    assert verdict.scenarios == required_scenarios(revision)
    unexpected = "\n".join(check.told for check in verdict.unexpected)
    assert not unexpected, f"Mend the product, or list with a reason:\n{unexpected}"
    assert not verdict.stale, f"Take off the list what passes or is not looked at: {', '.join(verdict.stale)}"
    assert verdict.figures == figures_told(revision), "Bring the list's figures up to date."
