"""Adds a bill of materials to the wheel: the packages in requirements/product.lock, as CycloneDX."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.builder.this import this_component
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packageurl import PackageURL
from packaging.utils import canonicalize_name

FILE = "workflow-catalogue.cdx.json"
PINNED = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?: ; (?P<marker>.+?))?(?P<hashes>(?: \\\n +--hash=\S+)+)$",
    re.MULTILINE,
)


class BillOfMaterials(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        lock = Path(self.root, "requirements", "product.lock").read_text(encoding="utf-8")
        core = self.metadata.core
        product = Component(
            type=ComponentType.APPLICATION,
            name=core.name,
            version=self.metadata.version,
            description=core.description,
            licenses=[DisjunctiveLicense(id=core.license_expression)],
            **_identity(core.name, self.metadata.version),
        )
        pinned = {match["name"]: _component(match) for match in PINNED.finditer(lock)}
        bill = Bom(components=pinned.values(), serial_number=uuid5(NAMESPACE_URL, f"{product.purl} {lock}"))
        bill.metadata.component = product
        bill.metadata.tools.components.add(this_component())
        bill.metadata.timestamp = None  # type: ignore[assignment]  # One checkout makes one wheel, byte for byte
        direct = {canonicalize_name(needed.name) for needed in core.dependencies_complex.values()}
        bill.register_dependency(product, [pinned[name] for name in direct])

        self.folder = TemporaryDirectory()
        path = Path(self.folder.name, FILE)
        path.write_text(JsonV1Dot6(bill).output_as_string(), encoding="utf-8")
        build_data["sbom_files"].append(str(path))
        # The first source decides; pyproject.toml's would move the file into a folder of .dist-info/sboms.
        sources = dict(self.build_config.sources)
        self.build_config.sources.clear()
        self.build_config.sources.update({FILE: FILE} | sources)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.folder.cleanup()


def _component(pinned: re.Match[str]) -> Component:
    name, version, marker = pinned["name"], pinned["version"], pinned["marker"]
    hashes = re.findall(r"--hash=sha256:(\w+)", pinned["hashes"])
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/project/{name}/{version}/"),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content) for content in hashes],
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        external_references=[files],
        properties=[Property(name="workflow-catalogue:environment-marker", value=marker)] if marker else [],
        **_identity(name, version),
    )


def _identity(name: str, version: str) -> dict[str, Any]:
    purl = PackageURL(type="pypi", name=name, version=version)
    return {"purl": purl, "bom_ref": str(purl)}
