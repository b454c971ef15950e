"""Check the chart and the systemd units with Helm, Kubernetes' schemas and systemd: `make static`.

Helm's own library renders the chart with the default values, with everything enabled and with everything
disabled. systemd-analyze checks the units if this machine has it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROGRAM = "/opt/workflow-catalogue/bin/workflow-catalogue"
WARNING = 2  # Of Helm's severities
SELECTOR: dict[str, Any] = {"namespaceSelector": {}}
VALUES: dict[str, dict[str, Any]] = {
    "default values": {},
    "everything enabled": {
        "image": {"digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "settings": {"CATALOGUE_INLINE_WAIT": 30, "LOG_LEVEL": "DEBUG"},
        "worker": {"autoscaling": {"queue": {"enabled": True}}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"example.com/size": "8m"},
            "tlsSecret": "tls",
        },
        "metrics": {"enabled": True, "from": [SELECTOR]},
        "networkPolicy": {"from": [SELECTOR], "to": [SELECTOR]},
        "serviceAccount": {"annotations": {"example.com/role": "catalogue"}},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "podAnnotations": {"example.com/team": "platform"},
    },
    "everything disabled": {
        "web": {"autoscaling": {"enabled": False}},
        "worker": {"autoscaling": {"enabled": False}},
        "migration": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False},
    },
}


def main() -> None:
    problems = [*check_chart(), *check_units()]
    if problems:
        sys.exit("\n".join(problems))


def check_chart() -> list[str]:
    problems = []
    with Chart.load(DEPLOY / "chart") as chart:
        for title, values in VALUES.items():
            found = lint(DEPLOY / "chart", values, strict=True)["messages"]
            problems += [f"{title}: {one['error']}" for one in found if one["severity"] >= WARNING]
            try:
                manifests = chart.render(values, name="example", namespace="default")
            except HelmError as error:
                problems.append(f"{title}: {error}")
                continue
            problems += [f"{title}: {problem}" for problem in check_manifests(manifests)]
    return problems


def check_manifests(manifests: dict[str, str]) -> list[str]:
    problems, count, newest = [], 0, kubernetes_validate.latest_version()
    for path, text in manifests.items():
        try:
            resources = [one for one in yaml.safe_load_all(text) if one]
        except yaml.YAMLError as error:
            problems.append(f"{path}: {error}")
            continue
        for resource in resources:
            count += 1
            try:
                kubernetes_validate.validate(resource, newest, strict=True)
            except kubernetes_validate.ValidationError as error:
                problems.append(f"{path}: {resource['kind']} {resource['metadata']['name']}: {error.message}")
    return problems if count else ["Nothing was rendered."]


def check_units() -> list[str]:
    if not (analyze := shutil.which("systemd-analyze")):
        print("The systemd units were not checked: systemd-analyze is not installed.")
        return []
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for unit in sorted((DEPLOY / "systemd").iterdir()):
            # The program need not be installed here.
            copies.append(Path(folder, unit.name))
            copies[-1].write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, sys.executable))
        command = [analyze, "verify", "--man=no", *map(str, copies)]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    return (outcome.stdout + outcome.stderr).splitlines()


if __name__ == "__main__":
    main()
