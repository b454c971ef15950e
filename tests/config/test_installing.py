"""What `make install-all` and `make check` show: dev/scripts/install.py, install_node.py,
stages.py and run_tests.py."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.e2e

NO_PROGRAMS = {**os.environ, "PATH": ""}
OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
"""pip finds nothing, and says so at once; `no-index` is a setting that is left to pip."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of the scripts alone, so that their logs and uv are its own."""
    shutil.copytree(ROOT / "dev" / "scripts", tmp_path / "checkout" / "dev" / "scripts")
    return tmp_path / "checkout"


@pytest.fixture
def folder(checkout: Path) -> Path:
    """A Node.js package without dependencies."""
    folder = checkout / "node"
    folder.mkdir()
    for name in ("package.json", "package-lock.json", ".npmrc"):
        (folder / name).write_text("{}" if name.endswith("json") else "")
    return folder


def script(
    checkout: Path, name: str, *arguments: str, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"dev/scripts/{name}", *arguments]
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)


def install_node(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return script(folder.parent, "install_node.py", "node", variables=variables)


def with_npm(tmp_path: Path, text: str) -> dict[str, str]:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npm").write_text(f"#!/bin/sh\n{text}\n")
    (programs / "npm").chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def borrow_pip(environment: Path) -> None:
    """Make an environment in a tenth of the time that installing pip into it takes."""
    venv.create(environment, symlinks=True)
    own, ours = (
        sysconfig.get_path("purelib", vars={"base": str(base)}) for base in (environment, sys.prefix)
    )
    (Path(own) / "borrowed.pth").write_text(ours)


def test_without_npm_it_says_what_is_left_out_and_how_to_get_it(folder):
    outcome = install_node(folder, NO_PROGRAMS)
    assert outcome.returncode == 1
    assert "npm is missing" in outcome.stderr
    assert not (folder / "node_modules").exists()


def test_what_is_installed_already_takes_no_npm(folder, tmp_path):
    first = install_node(folder, with_npm(tmp_path, 'echo chatter; [ "$1" = ci ] && mkdir node_modules'))
    again = install_node(folder, NO_PROGRAMS)
    (folder / "package-lock.json").write_text('{"changed": true}')
    changed = install_node(folder, NO_PROGRAMS)
    assert [first.returncode, again.returncode, changed.returncode] == [0, 0, 1], first.stderr
    assert again.stdout == ""
    begun, ready = first.stdout.splitlines()
    assert begun.endswith("package-lock.json ...")
    assert re.fullmatch(r"node_modules: ready after \d+ s\.", ready)


def test_a_failure_of_npm_shows_its_last_errors_and_where_all_of_its_output_is(folder, tmp_path):
    errors = "for i in $(seq 50); do echo chatter $i; echo npm error number $i; done; exit 1"
    outcome = install_node(folder, with_npm(tmp_path, errors))
    log = folder.parent / ".cache" / "install" / "node_modules.log"
    assert outcome.returncode == 1
    assert "npm error number 50" in outcome.stderr and "npm error number 44" not in outcome.stderr
    assert str(log) in outcome.stderr and "chatter" not in outcome.stderr
    assert "npm error number 1\n" in log.read_text()


def test_a_failure_of_pip_shows_its_errors_and_what_to_do_and_the_next_run_goes_on(checkout):
    borrow_pip(checkout / ".venv")
    lock = checkout / "some.lock"
    lock.write_text(f"not-to-be-had==1.0 --hash=sha256:{'0' * 64}\n")
    failed = script(checkout, "install.py", ".venv", "some.lock", variables=OFFLINE)
    assert failed.returncode == 1
    assert failed.stdout == ".venv: installing about 1 packages of some.lock ...\n"
    assert "ERROR: No matching distribution found for not-to-be-had==1.0" in failed.stderr
    assert str(checkout / ".cache" / "install" / "venv.log") in failed.stderr
    assert "pip config list" in failed.stderr
    assert len(failed.stderr.splitlines()) < 10

    lock.write_text("")
    mended = script(checkout, "install.py", ".venv", "some.lock", variables=OFFLINE)
    again = script(checkout, "install.py", ".venv", "some.lock", variables=OFFLINE)
    assert [mended.returncode, again.returncode] == [0, 0], mended.stderr
    assert re.fullmatch(r".*\n\.venv: ready after \d+ s\.\n", mended.stdout)
    assert again.stdout == ""


def test_an_environment_that_a_second_worktree_links_to_is_not_installed_again(checkout):
    borrow_pip(checkout / ".venv")
    (checkout / "some.lock").write_text("")
    script(checkout, "install.py", ".venv", "some.lock", variables=OFFLINE)
    worktree = checkout.with_name("worktree")
    worktree.mkdir()
    for name in ("dev", "some.lock", ".venv"):
        (worktree / name).symlink_to(checkout / name)
    linked = script(worktree, "install.py", ".venv", "some.lock", variables=OFFLINE)
    assert (linked.returncode, linked.stdout) == (0, "")


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, {}),
        (
            {
                "PIP_INDEX_URL": "https://first.example/simple",
                "PIP_EXTRA_INDEX_URL": "https://second.example/simple\nhttps://third.example/simple",
                "PIP_FIND_LINKS": "/wheels /more-wheels",
                "PIP_TIMEOUT": "60",
                "PIP_CONSTRAINT": "/constraints.txt",
            },
            {
                "UV_DEFAULT_INDEX": "https://first.example/simple",
                "UV_INDEX": "https://second.example/simple https://third.example/simple",
                "UV_FIND_LINKS": "/wheels,/more-wheels",
            },
        ),
        ({"PIP_CLIENT_CERT": "/some.pem"}, None),
    ],
)
def test_uv_asks_the_indexes_of_pips_configuration_and_leaves_what_it_lacks_to_pip(settings, given):
    question = (
        "from pathlib import Path; from install import pip_settings, variables_for_uv;"
        f"print(variables_for_uv(pip_settings(Path({sys.prefix!r}))))"
    )
    # So that neither this machine's configuration nor its variables have a say.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    alone = {**own, "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": str(ROOT / "dev" / "scripts")}
    command = [sys.executable, "-c", question]
    outcome = subprocess.run(command, env=alone | settings, capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == str(given)


def stages(*names_and_commands: str) -> subprocess.CompletedProcess[str]:
    return script(ROOT, "stages.py", *names_and_commands, variables={**os.environ})


def table(text: str) -> list[tuple[str, str]]:
    rows = re.findall(r"^(\w+) +\d+:\d\d  (\w+)$", text, re.MULTILINE)
    return [(name, outcome) for name, outcome in rows]


def test_stages_end_at_the_first_that_fails_with_its_code_and_a_table():
    outcome = stages("first=true", "second=sh -c 'exit 3'", "third=echo never")
    assert outcome.returncode == 3
    assert table(outcome.stdout) == [("first", "passed"), ("second", "failed")]
    assert "never" not in outcome.stdout


def test_stages_that_run_together_are_each_shown_as_a_whole(tmp_path):
    """The first waits for the last, which it could not if they ran one after the other."""
    flag = tmp_path / "flag"
    waits = f"sh -c 'while [ ! -e {flag} ]; do sleep 0.05; done; echo one; echo two'"
    together = f"first={waits}\n+second=sh -c 'echo three; exit 4'"
    outcome = stages(together, "", f"+third=touch {flag}", "fourth=echo never")
    assert outcome.returncode == 4
    assert table(outcome.stdout) == [("first", "passed"), ("second", "failed"), ("third", "passed")]
    assert "never" not in outcome.stdout
    printed = outcome.stdout.partition("=== third")[0]
    assert " ".join(printed.split()) == "=== first one two === second three"


def test_ctrl_c_ends_the_stage_in_its_own_way_and_still_shows_the_table():
    ends_gracefully = "sh -c 'trap \"echo cleaned up; exit 0\" INT; echo begun; while :; do sleep 0.1; done'"
    command = [sys.executable, "dev/scripts/stages.py", f"first={ends_gracefully}", "second=echo never"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "begun\n":
                break
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "cleaned up" in rest and "never" not in rest
    assert table(rest) == [("first", "interrupted")]


@pytest.mark.parametrize(
    ("unsteady", "wrong", "code", "again"), [(2, 0, 0, 2), (1, 1, 1, 2), (0, 0, 0, 0), (11, 0, 1, 0)]
)
def test_a_check_repeats_a_few_failed_tests_once_and_fails_if_one_fails_again(
    checkout, unsteady, wrong, code, again
):
    text = f"""
import pathlib, pytest

@pytest.mark.parametrize("number", range({unsteady}))
def test_unsteady(number):
    flag = pathlib.Path(str(number))
    before = flag.exists()
    flag.touch()
    assert before

@pytest.mark.parametrize("number", range({wrong}))
def test_wrong(number):
    assert False

def test_right():
    pass
"""
    (checkout / "test_some.py").write_text(text)
    quiet = (
        "-q",
        "-n",
        "0",
        "-p",
        "no:schemathesis",
        "-p",
        "no:randomly",
        "-p",
        "no:asyncio",
        "-p",
        "no:django",
    )
    outcome = script(checkout, "run_tests.py", *quiet, variables={**os.environ})
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    repeated = outcome.stdout.partition("Once more, alone:")[2].partition("\n\n")[0]
    assert repeated.count("test_some.py::") >= again
    assert bool(repeated) == bool(again)
