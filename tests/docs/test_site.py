"""The documentation as a site: whole, and without a request to any other host."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from tests.e2e.webdriver import BROWSER, DRIVER, MISSING, real_browser
from tests.mcp_bridge.serving import serving
from tests.processes import ROOT

pytestmark = pytest.mark.e2e  # It is built once in `make check`, not for each run of the other tests
LOADED = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
"""Attributes whose address a browser asks for by itself."""
NOT_LOADED = {"canonical", "prev", "next", "alternate"}
LAZY = {"mermaid", "glightbox", "pyodide"}
"""Classes for which the theme's script would load more from another host."""


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.classes: set[str] = set()
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids |= {has[name] for name in ("id", "name") if name in has}
        self.classes |= set(has.get("class", "").split())
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        if has.get(LOADED.get(tag, "")) and has.get("rel") not in NOT_LOADED:
            self.loaded.append(has[LOADED[tag]])
        if has.get("http-equiv") == "Content-Security-Policy":
            self.policy = has["content"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make site` builds it."""
    place = tmp_path_factory.mktemp("documentation")
    shutil.copytree(ROOT / "deploy" / "site", place, dirs_exist_ok=True)
    shutil.copytree(ROOT / "docs", place / "docs")
    zensical = ROOT / ".cache" / "zensical"
    script = [sys.executable, "dev/scripts/install.py", str(zensical), "requirements/site.lock"]
    subprocess.run(script, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    command = [str(zensical / "bin" / "python"), "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=place, env=os.environ, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return place / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}


def addresses(pages: dict[Path, Page], kind: str) -> Iterator[tuple[Path, str]]:
    for file, page in pages.items():
        for address in getattr(page, kind):
            yield file, address


def test_every_page_is_built(site: Path, pages: dict[Path, Page]) -> None:
    sources = (ROOT / "docs").rglob("*.md")
    built = {file.relative_to(site).with_suffix(".md") for file in pages}
    assert {source.relative_to(ROOT / "docs") for source in sources} <= built


def test_every_link_leads_to_a_page_a_heading_or_a_file(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for file, link in [*addresses(pages, "links"), *addresses(pages, "loaded")]:
        parts = urlsplit(link)
        if parts.scheme or file.name == "404.html":
            continue
        target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
        target = target / "index.html" if target.is_dir() else target
        if not target.exists():
            broken.append(f"{file.relative_to(site)}: {link}")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
            broken.append(f"{file.relative_to(site)}: {link} (no such heading)")
    assert broken == []


def test_no_page_asks_another_host_for_anything(site: Path, pages: dict[Path, Page]) -> None:
    assert [(file.name, one) for file, one in addresses(pages, "loaded") if "//" in one] == []
    assert [file.name for file, page in pages.items() if LAZY & page.classes] == []
    assert [file.name for file, page in pages.items() if "default-src 'self'" not in page.policy] == []
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text and "url(//" not in text and "@import" not in text, sheet.name


def test_the_search_has_every_page(site: Path) -> None:
    index = (site / "search.json").read_text(encoding="utf-8")
    assert all(f'"{file.relative_to(site)}' in index for file in site.glob("*.html") if file.stem != "404")


@pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_reader_searches_it_in_the_colours_of_their_system(
    site: Path, tmp_path: Path, colours: str
) -> None:
    files = Starlette(routes=[Mount("/", StaticFiles(directory=site))])
    with serving(files) as address, real_browser(tmp_path) as browser:
        browser.prefer(colours)
        browser.open(f"{address}/index.html")
        browser.wait_for("document.body.dataset.mdColorScheme")
        background = browser.run(
            "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        assert (max(background[:3]) < 60) == (colours == "dark")
        browser.click("button.md-search__button")
        search = "document.activeElement.shadowRoot?"
        browser.wait_for(f"{search}.activeElement?.matches('input')")
        browser.press(*"imitate")
        browser.wait_for(f"{search}.querySelector('a[href*=\"security.html\"]')")
        loaded = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert [one for one in loaded if not one.startswith(address)] == []
        assert browser.complaints() == []
