"""`python -m dev.scripts.mutants`: faults that tests should notice, and the share that they do."""

import shutil
import subprocess
import sys

import pytest

from dev.scripts.mutants.__main__ import Outcome, report
from dev.scripts.mutants.operators import Mutant, is_a_change, mutants_of
from dev.scripts.mutants.sampling import PARTS, modules_of, place, sample
from tests.processes import ROOT


def faults(source: str) -> set[str]:
    """The changed lines of all mutants."""
    return {"\n".join(mutant.after) for mutant in mutants_of("module.py", source.encode())}


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = (a) is not (b)", {"x = (a) is (b)"}),
        ("x = a == b in c", {"x = a != b in c", "x = a == b not in c"}),
        ("x = a and b and not c", {"x = a or b and not c", "x = a and b or not c", "x = a and b and c"}),
        ("x = a * (b + 1)", {"x = a / (b + 1)", "x = a * (b - 1)", "x = a * (b + 2)"}),
        ("x += y", {"x -= y"}),
        ("x = 60.0", {"x = 0"}),
        ("x = 'key', True", {'x = "keyx", True', "x = 'key', False"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("x.y = z", {"pass"}),
        ("f(a, b=c, d=e)", {"pass", "f(a, d=e)", "f(a, b=c, )"}),
        ("def f(): return a", {"def f(): return None"}),
        ("raise Gone from error", {"pass"}),
        ("while a: break", {"while not (a): break", "while a: continue"}),
        ("x = 'ü', a == b", {"x = 'ü', a != b"}),
    ],
)  # fmt: skip
def test_each_operator_changes_one_thing(source, mutants):
    assert faults(source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "x: int | None",
        "def f(x: 'text') -> Literal[3]: ...",
        "Answer = One | Other",
        "@dataclass(frozen=True)\nclass A: ...",
        "class Meta:\n    ordering = ['name']",
        "def __repr__(self):\n    return a + b",
        "if TYPE_CHECKING:\n    x = 1",
        "assert a == b, 'text'",
        "logger.bind(execution=1).warning('text', error)",
        "x = isinstance(y, int | str)",
        "x = models.CharField(max_length=255)",
        "class A:\n    x: int = field(repr=False)",
        "x: str = Field(title='Source', description='What it is.')",
        "x = 'a message', f'{a + b}', y + '/'",
    ],
)
def test_what_no_test_can_see_stays_as_it_is(source):
    assert faults(source) == set()


def test_every_part_that_is_tried_is_there():
    assert all(modules_of(ROOT, part) for part in PARTS)


def test_mutants_compile_into_something_else():
    part = modules_of(ROOT, "catalogue/naming")[0]
    broken = Mutant("module.py", 1, "broken", ["x = 1"], ["x ="])
    unchanged = Mutant("module.py", 1, "unchanged", ["x = 1"], ["x = 1  # Still."])
    assert not is_a_change(broken, "x = 1\n")
    assert not is_a_change(unchanged, "x = 1\n")
    for mutant in sample(ROOT, ["catalogue/naming"], size=20, seed=1):
        assert is_a_change(mutant, part.read_text())


def test_a_mutant_is_found_again_where_its_lines_moved(tmp_path):
    mutant = Mutant("room/old.py", 2, "number", ["    return 1"], ["    return 2"])
    (tmp_path / "room").mkdir()
    (tmp_path / "room/old.py").write_text("def f():\n    a\n    return 1\n\n\ndef g():\n    return 1\n")
    moved = place(mutant, tmp_path)
    assert moved is not None
    assert (moved.path, moved.line) == ("room/old.py", 3)
    (tmp_path / "room/old.py").rename(tmp_path / "room/new.py")
    assert place(mutant, tmp_path) is None, "It could be either of two."
    (tmp_path / "room/new.py").write_text("def f():\n    return 1\n")
    moved = place(mutant, tmp_path)
    assert moved is not None
    assert (moved.path, moved.line) == ("room/new.py", 2)


def test_a_test_that_fails_anyway_has_killed_nothing(capsys):
    mutant = Mutant("module.py", 1, "number", ["x = 1"], ["x = 2"])
    killed, doubtful = (
        Outcome(mutant, 1, "tests/a.py::test_sound"),
        Outcome(mutant, 1, "tests/a.py::test_flaky"),
    )
    assert report([killed, doubtful], ["tests/a.py::test_flaky"], threshold=50) == 1
    assert "1 of 1 mutants killed: 100.0 %" in capsys.readouterr().out
    assert report([killed, killed], [], threshold=100) == 0
    assert report([killed, Outcome(mutant, 0, None)], [], threshold=85) == 1
    assert "no test executes it" in capsys.readouterr().out


SETTINGS = """[pytest]
pythonpath = .
addopts = --strict-markers --disable-plugin-autoload -p pytest_cov
"""
PRODUCT = """LIMIT = 10


def is_large(size):
    return size > LIMIT


def is_odd(size):
    return size % 2 == 1
"""
TESTS = """from shop.sizes import is_large


def test_twenty_is_large():
    assert is_large(20)


def test_one_is_not():
    assert not is_large(1)
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="copies hold what git lists")
@pytest.mark.e2e
def test_a_survivor_is_told_from_what_the_tests_kill(tmp_path):
    for path, text in {
        "shop/__init__.py": "",
        "shop/sizes.py": PRODUCT,
        "tests/test_sizes.py": TESTS,
        "pytest.ini": SETTINGS,
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    options = f"--tree {tmp_path} --parts shop --size 100 --jobs 1 --threshold 20".split()
    command = [sys.executable, "-m", "dev.scripts.mutants", *options]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = outcome.stdout
    assert outcome.returncode == 0, told + outcome.stderr
    assert "shop/sizes.py:1 number, 2 tests" in told
    assert "-     return size > LIMIT\n  +     return size >= LIMIT\n  survived 2 tests" in told
    assert "+     return size <= LIMIT" not in told
    assert "+     return size % 2 != 1\n  no test executes it" in told
    assert "2 of 9 mutants killed: 22.2 % (20 % wanted)." in told
    assert (tmp_path / "shop/sizes.py").read_text() == PRODUCT
