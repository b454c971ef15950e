"""Packages that bring connectors, installed as far as Python can tell."""

from pathlib import Path

from connectors.registry import ENTRY_POINT_GROUP, forget_connectors


def declare_package(folder: Path, name: str, *, version: str = "1.0", **connectors: str) -> None:
    """Have the folder, once it is on the path, declare a package with these connectors by kind."""
    declared = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{kind} = {path}" for kind, path in connectors.items())]
    (declared / "entry_points.txt").write_text("\n".join(lines) + "\n")
    forget_connectors()
