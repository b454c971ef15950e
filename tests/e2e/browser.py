"""The admin over HTTP as a person with a browser uses it: cookies, CSRF tokens, forms read before sent."""

import html
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Self

import httpx2

from tests import plain_http
from tests.e2e.product import Product

Attributes = Sequence[tuple[str, str | None]]


class Browser:
    """Use as `with Browser(product) as browser`; paths are relative to `/admin/`."""

    def __init__(self, product: Product) -> None:
        self._http = plain_http.Client(base_url=f"{product.url}/admin/", timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def log_in(self, password: str) -> httpx2.Response:
        self.get("login/")
        return self.post("login/", {"username": "admin", "password": password})

    def get(self, path: str) -> str:
        return self._http.get(path).raise_for_status().text

    def post(self, path: str, form: dict[str, str]) -> httpx2.Response:
        return self._http.post(path, data=form | {"csrfmiddlewaretoken": self._http.cookies["csrftoken"]})

    def submit(self, path: str, form_id: str, changes: dict[str, str]) -> None:
        """Change some fields of a page's form and send all of it."""
        answer = self._send(path, form_id, self.get(path), changes)
        assert answer.status_code == 302, text_of(answer.text)

    def submit_and_confirm(self, path: str, form_id: str, changes: dict[str, str]) -> None:
        """The same with a form that shows what it would do before it does it."""
        shown = self._send(path, form_id, self.get(path), changes)
        assert shown.status_code == 200, "it was saved at once"
        answer = self._send(path, form_id, shown.text, {})
        assert answer.status_code == 302, text_of(answer.text)

    def _send(self, path: str, form_id: str, page: str, changes: dict[str, str]) -> httpx2.Response:
        reader = FormReader(form_id)
        reader.feed(page)
        return self.post(path, reader.fields | changes)

    def press(self, path: str) -> str:
        """Press a button; what the page says that comes next."""
        answer = self.post(path, {})
        assert answer.status_code == 302, text_of(answer.text)
        return text_of(self.get(str(self._http.base_url.join(answer.headers["location"]))))

    def first_match(self, path: str, pattern: str) -> str:
        """The pattern's group where it is first found in the page."""
        found = re.search(pattern, page := self.get(path))
        assert found, text_of(page)
        return found[1]


class FormReader(HTMLParser):
    """The fields of one form of a page, as a browser would send them back."""

    def __init__(self, form_id: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._form_id, self._inside, self._name = form_id, False, ""

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given.get("id") == self._form_id
        elif self._inside and tag in ("select", "textarea"):
            self._name = given["name"]
            if "multiple" not in given:
                self.fields[self._name] = ""
        elif self._inside and tag == "option" and "selected" in given:
            self.fields[self._name] = given["value"]
        elif self._inside and tag == "input" and "name" in given:
            self._read_input(given)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("select", "textarea"):
            self._name = ""

    def handle_data(self, data: str) -> None:
        if self._name and self.lasttag == "textarea":
            # Browsers, too, ignore the line break that templates put first.
            self.fields[self._name] += data.removeprefix("\n")

    def _read_input(self, given: dict[str, str]) -> None:
        if given["type"] == "checkbox" and "checked" in given:
            self.fields[given["name"]] = given.get("value", "on")
        elif given["type"] not in ("checkbox", "submit"):
            self.fields[given["name"]] = given.get("value", "")


def text_of(page: str) -> str:
    """What a person reads."""
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(shown).split())
