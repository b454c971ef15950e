"""What pages show in English although their reader speaks German."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation
from django.utils.translation import trans_real

from catalogue.admin.form_fields import setting_field
from catalogue.connections import settings_of
from connectors.registry import usable_connectors
from tests.access_matrix import read_table
from tests.admin.test_access_matrix import _address, _patterns
from tests.admin.window import make_everything, make_http_tool

BEGIN, END, SPLIT = "⟦", "⟧", "␞"
MARKED = re.compile(f"{BEGIN}[^{BEGIN}{END}]*{END}")
VARIABLE = re.compile(r"\bCATALOGUE_[A-Z_]+")
WORD = re.compile(r"[^\W\d_]{2,}")
NOT_TEXT = ("script", "style", "code", "pre", "kbd", "textarea", "bdi", "title")
EMPTY = ("br", "hr", "img", "input", "link", "meta")
SPOKEN = ("placeholder", "title", "aria-label", "alt", "data-label")
SAME = {
    "en",
    "english",
    "deutsch",
    "utc",
    "min",
    "csv",
    "details",
    "localhost",
    "http",
    "https",
    "get",
    "head",
    "rest",
    "mcp",
    "json",
    "yaml",
    "ms",
    "id",
    "api",
    "temporal",
    "prefect",
    "post",
    "put",
    "patch",
    "form",
    "multipart",
    "raw",
}
"""Words that are the same in German, and names."""
NOT_YET = {
    "catalogue_review_changelist",
    "catalogue_toolset_delete",
    "executions_cacheuse_change",
    "executions_cacheuse_history",
    "executions_engine_runs",
}
"""Pages that still have English texts. The list may only become shorter."""


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.texts += [given[name] for name in SPOKEN if name in given]
        is_icon = "material-symbols-outlined" in given.get("class", "")
        if tag not in EMPTY and (self._skipped or tag in NOT_TEXT or is_icon):
            self._skipped.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipped and self._skipped[-1] == tag:
            self._skipped.pop()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.texts.append(data)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a German translation stands in brackets."""
    for name in ("gettext", "pgettext", "ngettext", "npgettext"):
        original = getattr(trans_real, name)

        def translate(*said: Any, original: Any = original) -> str:
            text = original(*said)
            is_known = text and translation.get_language() == "de" and _knows(said)
            return f"{BEGIN}{text}{END}" if is_known else text

        monkeypatch.setattr(translation._trans, name, translate, raising=False)


def _knows(said: tuple[Any, ...]) -> bool:
    texts = [text for text in said if isinstance(text, str)]
    catalogue = trans_real.catalog()._catalog
    found = (catalogue.get(key) for text in texts for key in (text, (text, 1), f"{texts[0]}\x04{text}"))
    return any(one is not None for one in found)


def data_words() -> set[str]:
    """Of what the database holds, which no catalogue can have."""
    rows = (row for model in apps.get_models() for row in model._base_manager.values_list())
    return {word.casefold() for row in rows for value in row for word in WORD.findall(str(value))}


def defaults() -> set[str]:
    """What empty fields show of the settings of connectors: values, such as paths and keys."""
    found = set()
    for kind in usable_connectors():
        settings = settings_of(kind)
        for setting in settings.values():
            shown = setting_field(setting, settings).widget.attrs.get("placeholder", "")
            found.add(" ".join(str(shown).split()))
    return found


def left_in_english(content: str, known: set[str]) -> list[str]:
    page = Page()
    page.feed(content)
    whole = VARIABLE.sub(" ", SPLIT.join(page.texts))  # Elements may split a translation
    while MARKED.search(whole):
        whole = MARKED.sub(" ", whole)
    rests = [" ".join(rest.split()) for rest in whole.split(SPLIT)]
    values = defaults()
    return [
        rest
        for rest in rests
        if rest not in values and {word.casefold() for word in WORD.findall(rest)} - known
    ]


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.django_db
def test_pages_have_no_text_that_lacks_german(marked: None) -> None:
    make_everything(User.objects.create(username="admin", is_superuser=True, is_staff=True))
    make_http_tool()
    client = Client(headers={"accept-language": "de"})
    client.force_login(User.objects.get(username="admin"))
    converters = {one.name: list(one.pattern.converters) for one in _patterns(admin.site.urls[0]) if one.name}
    left: dict[str, list[str]] = {}
    for name, verb in sorted(read_table()["admin"]):
        if verb != "open":
            continue
        response: Any = client.get(_address(name, converters[name]))
        if response.status_code == 200 and response["Content-Type"].startswith("text/html"):
            known = data_words() | SAME
            if found := left_in_english(response.content.decode(), known):
                left[name] = found
    assert not {name: texts for name, texts in left.items() if name not in NOT_YET}
