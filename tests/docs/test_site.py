"""The documentation as a site: built without a broken link, and without a request to any other host."""

import re
import subprocess
import sys

import pytest

from tests.processes import ROOT


@pytest.mark.e2e
def test_the_site_is_built_and_no_page_asks_another_host():
    make = ["make", "site", f"PYTHON={sys.executable}"]
    built = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    for file in (ROOT / ".cache" / "documentation" / "site").rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert "default-src 'self'" in text, f"{file.name}: deploy/site/theme/main.html sets the policy"
        asks = re.search(r'class="(?:[^"]* )?(mermaid|glightbox|pyodide)[ "]', text)
        assert not asks, f"{file.name}: {asks[1]} comes from another host: show a picture or text instead"
