"""The style sheet that the admin serves is compiled: a class that it lacks does nothing, without an error."""

import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.template.loader import get_template

ROOT = Path(__file__).parents[2]
APPS = ("access", "audit", "catalogue", "config", "executions", "identity", "mcp_bridge", "orchestration")
TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{\}", re.DOTALL)
CLASSES = re.compile(r'(?<![:\w-])class="([^"]*)"')
SELECTOR = re.compile(r"\.((?:\\.|[\w-])+)")
OF_UNFOLD = {"chart", "errornote", "group/button", "result-list", "result-list-wrapper", "sortable"}
"""Names that only others refer to."""


@pytest.fixture(scope="module")
def styled() -> set[str]:
    unfolds = finders.find("unfold/css/styles.css")
    assert isinstance(unfolds, str)
    ours = [path for app in APPS for path in (ROOT / app).rglob("*.css")]
    texts = [Path(unfolds).read_text(), *(path.read_text() for path in ours)]
    texts += re.findall(r"<style>.*?</style>", get_template("admin/base.html").template.source, re.DOTALL)
    return {name.replace("\\", "") for text in texts for name in SELECTOR.findall(text)} | OF_UNFOLD


@pytest.mark.parametrize("app", APPS)
def test_every_class_of_a_template_is_in_a_style_sheet_or_named_by_a_script(app, styled):
    """B8: the lines of a text ran together, and the bar of a list above its budget was green."""
    scripts = "".join(path.read_text() for path in (ROOT / app).rglob("static/**/*.js"))
    lost = set()
    for path in [*(ROOT / app).rglob("templates/**/*.html"), *(ROOT / app).rglob("admin/*.py")]:
        # Tags stand for other classes, which their own places have.
        for names in CLASSES.findall(TAG.sub(" ", path.read_text())):
            lost |= {f"{path.name}: {name}" for name in set(names.split()) - styled if name not in scripts}
    assert not lost
