"""Running the official conformance suite, and comparing what it says with what is known not to apply."""

import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.node_tools import PACKAGES

PACKAGE = PACKAGES / "@modelcontextprotocol" / "conformance"
LIST = Path(__file__).with_name("not_applicable.toml")
OF_EVERY_SCENARIO = {"wire-schema-valid", "wire-schema-harness-error"}
"""Checks that the suite adds to each scenario; one that is not applicable has to pass them all the same."""
RESULTS = re.compile(r"server-(?P<scenario>.+?)-\d{4}-\d\d-\d\dT[\d-]+Z")
MAX_RUN_SECONDS = 200


@dataclass(frozen=True)
class Check:
    """One thing that a scenario looks at. It may do so several times; the worst outcome is told here."""

    scenario: str
    id: str
    passed: bool
    told: str

    @property
    def entries(self) -> tuple[str, ...]:
        """How the list may name it."""
        one = f"{self.scenario}:{self.id}"
        return (one,) if self.id in OF_EVERY_SCENARIO else (one, self.scenario)


@dataclass(frozen=True)
class Verdict:
    scenarios: set[str]
    """What the suite ran."""
    unexpected: list[Check]
    """What did not pass and is not listed."""
    stale: list[str]
    """What is listed and passes, or is nothing that the suite looks at."""
    figures: dict[str, int]


def required_scenarios(revision: str) -> set[str]:
    """What the suite has for a server of this revision, with what it runs but does not score."""
    listed = yaml.safe_load((PACKAGE / "requirements" / f"{revision}.yaml").read_text(encoding="utf-8"))
    unscored = {entry["scenario"] for entry in listed["not_scored"] if entry["leg"] == "server"}
    return {*listed["server"], *unscored}


@dataclass(frozen=True)
class Suite:
    """The suite against one server, in one revision of the protocol."""

    node: Path
    url: str
    revision: str
    folder: Path
    """For its results."""

    def judge(self) -> Verdict:
        """What is not as the list has it is run once more, alone.

        The suite waits for some answers for half a second, which a busy machine may need for itself.
        """
        checks, gaps = self._run("--requirements", self.revision), known_gaps(self.revision)
        for scenario in {check.scenario for check in judge(checks, gaps).unexpected}:
            again = self._run("--scenario", scenario, "--spec-version", self.revision, "--force")
            checks = [check for check in checks if check.scenario != scenario] + again
        return judge(checks, gaps)

    def _run(self, *which: str) -> list[Check]:
        """Its exit code says less than its results: it is 0 as long as what it scores passes."""
        folder = self.folder / "_".join(which)
        options = ["--url", self.url, "--output-dir", str(folder), *which]
        outcome = subprocess.run(
            [self.node, PACKAGE / "dist" / "index.js", "server", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=MAX_RUN_SECONDS,
        )
        checks = list(_read_checks(folder))
        assert checks, f"{outcome.stdout[-3000:]}{outcome.stderr[-3000:]}"
        return checks


def known_gaps(revision: str) -> dict[str, str]:
    """The reason for each entry of the list that is about this revision."""
    blocks = _read_list()["not_applicable"]
    return {
        entry: block["reason"]
        for block in blocks
        if revision in block["revisions"]
        for entry in block["checks"]
    }


def figures_told(revision: str) -> dict[str, int]:
    """How many scenarios came out how when the list was last changed."""
    told: dict[str, int] = _read_list()["scenarios"][revision]
    return told


def judge(checks: Iterable[Check], gaps: Mapping[str, str]) -> Verdict:
    checks = list(checks)
    failing = [check for check in checks if not check.passed]
    excused = {entry for check in failing for entry in check.entries if entry in gaps}
    scenarios = {check.scenario for check in checks}
    incomplete = {check.scenario for check in failing}
    return Verdict(
        scenarios=scenarios,
        unexpected=[check for check in failing if not excused.intersection(check.entries)],
        stale=sorted(set(gaps) - excused),
        figures={
            "passed": len(scenarios - incomplete),
            "passed_but_for_listed_checks": len(incomplete - set(gaps)),
            "not_applicable": len(incomplete & set(gaps)),
        },
    )


def _read_list() -> dict[str, Any]:
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def _read_checks(folder: Path) -> Iterator[Check]:
    for results in sorted(folder.glob("*/checks.json")):
        named = RESULTS.fullmatch(results.parent.name)
        assert named, results.parent.name
        by_id: dict[str, list[dict[str, Any]]] = {}
        for check in loads(results.read_text(encoding="utf-8")):
            by_id.setdefault(check["id"], []).append(check)
        fine = _fine_statuses(by_id)
        yield from (_merge(named["scenario"], check_id, found, fine) for check_id, found in by_id.items())


def _fine_statuses(by_id: Mapping[str, list[dict[str, Any]]]) -> set[str]:
    """A remark is no failure, but a scenario that only makes remarks has looked at nothing."""
    own = [check for check_id, found in by_id.items() if check_id not in OF_EVERY_SCENARIO for check in found]
    looked = any(check["status"] == "SUCCESS" for check in own)
    return {"SUCCESS", "INFO"} if looked else {"SUCCESS"}


def _merge(scenario: str, check_id: str, found: list[dict[str, Any]], fine: set[str]) -> Check:
    failing = [check for check in found if check["status"] not in fine]
    words = "; ".join(f"{check['status']}: {check.get('errorMessage', '')[:500]}" for check in failing)
    return Check(scenario, check_id, not failing, f"{scenario}:{check_id} {words}")
