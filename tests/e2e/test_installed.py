"""The wheel in an environment of its own: nothing of the checkout is on its path."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from mcp import Client
from mcp.client.stdio import StdioServerParameters, get_default_environment

from tests import plain_http
from tests.e2e.product import environment, place_for_one, started
from tests.processes import ROOT

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `workflow-catalogue`; what the product needs is lent from the tests' environment."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = [*pip, "wheel", "--no-build-isolation", "--no-deps", f"--wheel-dir={folder}", str(ROOT)]
    subprocess.run(built, check=True, capture_output=True)
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    (wheel,) = folder.glob("workflow_catalogue-*.whl")
    options = ["--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--python", str(python), "install", *options, str(wheel)], check=True, capture_output=True
    )
    (packages,) = (folder / "environment").glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.with_name("workflow-catalogue")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has nothing yet."""
    ours = ("CATALOGUE_", "DATABASE_URL", "CELERY_BROKER_URL", "SECRET_KEY", "PYTHONPATH", "COV_CORE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}


async def test_stdio_answers_a_client_from_an_empty_folder(installed, home):
    """E10: one command in the client's configuration, no second terminal."""
    server = StdioServerParameters(
        command=str(installed), args=["stdio"], env=get_default_environment() | home, cwd=home["HOME"]
    )
    async with Client(server) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
    data = Path(home["XDG_DATA_HOME"])
    assert "list_workflows" in tools
    assert (data / "workflow-catalogue" / "catalogue.sqlite3").exists()
    assert os.listdir(home["HOME"]) == [data.name]


def test_nothing_but_one_name_is_added_to_the_environment(installed):
    (packages,) = installed.parents[1].glob("lib/python*/site-packages")
    names = {path.name for path in packages.iterdir() if not path.name.endswith((".dist-info", ".pth"))}
    assert names == {"workflow_catalogue"}
    assert (packages / "workflow_catalogue" / "connectors" / "py.typed").exists()


def test_the_bill_of_materials_lists_what_the_lock_pins(installed):
    (path,) = installed.parents[1].glob("lib/python*/site-packages/*.dist-info/sboms/*.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text()) is None
    listed = {f"{one['name']}=={one['version']}" for one in json.loads(path.read_text())["components"]}
    lock = (ROOT / "requirements" / "product.lock").read_text()
    assert listed == set(re.findall(r"^[\w.-]+==[^\s;]+", lock, re.MULTILINE))


def test_quickstart_runs_everything_and_serves_the_admin_with_its_files(installed, tmp_path):
    with place_for_one(tmp_path / "data") as place, started(place, (str(installed), "quickstart")) as product:
        product.wait_until_up()
        assert "workflow-catalogue client_config" in product.output
        with plain_http.Client(base_url=product.url) as browser:
            page = browser.get("/admin/login/").text
            named = {part.split('"')[0] for part in page.split('"/static/')[1:]}
            assert named and all(browser.get(f"/static/{name}").is_success for name in named)
        called = [str(installed), "call_tool", "text_statistics", '{"text": "Two words."}']
        outcome = subprocess.run(
            called, env=environment(place), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert '"words": 2' in outcome.stdout, outcome.stderr + product.told()
        product.stop()
