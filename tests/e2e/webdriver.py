"""A real browser: Chromium without a window, driven by keyboard and mouse through the WebDriver protocol."""

import base64
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from connectors.testing import free_port
from tests import plain_http
from tests.processes import running

DRIVER = shutil.which("chromedriver")
SHELL = shutil.which("chromium-headless-shell")
"""Chromium without the windows around its pages: a quarter less CPU for a test and its browser together."""
BROWSER = SHELL or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MISSING = "needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"

TAB, ENTER, SPACE, DOWN, CONTROL, BACKSPACE = "\ue004", "\ue006", " ", "\ue015", "\ue009", "\ue003"
SHIFT, ESCAPE = "\ue008", "\ue00c"
WAIT_SECONDS, LOOK_SECONDS, SCRIPT_SECONDS = 60, 1, 10
"""For something to come; for which one page is watched for it; after which that page is taken for gone."""
STILL = """
addEventListener('DOMContentLoaded', () => {
  const style = document.createElement('style');
  style.textContent = '*, ::before, ::after { transition: none !important; animation: none !important; ' +
    'backdrop-filter: none !important }';
  document.head?.append(style);  // A picture has none
});
"""
"""Without a graphics card, a filter's panel that slides in over a blurred page takes a third of all CPU."""
WAITING = """
const [condition, milliseconds, done] = arguments;
const holds = new Function(`return (${condition})`);
const until = performance.now() + milliseconds;
const look = () => {
  const found = holds();
  if (found || performance.now() > until) done(found);
  else requestAnimationFrame(look);
};
look();
"""


class BrowserRefused(Exception):
    """The browser did not do what it was told to."""


MAY_PASS = ("not interactable", "stale element reference")
"""Refusals of a click on what a script is about to show, or has just replaced."""
BROKEN_OFF = ('"htmx:sendAbort"', '"htmx:afterRequest"')
"""What htmx calls an error where a newer request takes the place of one. Failures have other names."""
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key that the protocol gives references to elements."""


class RealBrowser:
    """One window, with a keyboard and a mouse."""

    def __init__(self, http: httpx2.Client, url: str) -> None:
        self._http = http
        self._url = url

    def open(self, address: str) -> None:
        self._command("url", url=address)

    def reload(self) -> None:
        self._command("refresh")

    def press(self, *keys: str) -> None:
        """One after another; a text is typed letter by letter."""
        strokes = [
            {"type": kind, "value": letter} for letter in "".join(keys) for kind in ("keyDown", "keyUp")
        ]
        self._command("actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def press_together(self, held: str, key: str) -> None:
        """Such as Ctrl-K."""
        order = (("keyDown", held), ("keyDown", key), ("keyUp", key), ("keyUp", held))
        strokes = [{"type": kind, "value": value} for kind, value in order]
        self._command("actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def tab_to(self, selector: str, *, most: int = 60) -> None:
        """Press Tab until that element has the focus."""
        for _ in range(most):
            if self.run(f"return document.activeElement.matches({selector!r})"):
                return
            self.press(TAB)
        raise AssertionError(f"Tab does not lead to {selector}: {self.text()}")

    def click(self, selector: str) -> None:
        """As the mouse does it: what is hidden or covered cannot be clicked, unless a script shows it.

        What a script puts in the place of what was found is looked for anew.
        """
        deadline = time.monotonic() + SCRIPT_SECONDS
        while True:
            found = self._command("element", using="css selector", value=selector)
            try:
                self._command(f"element/{found[ELEMENT]}/click")
            except BrowserRefused as refusal:
                if not any(words in str(refusal) for words in MAY_PASS) or time.monotonic() > deadline:
                    raise
                self.run_async("requestAnimationFrame(arguments[arguments.length - 1])")
            else:
                return

    def click_found(self, expression: str) -> None:
        """What a JavaScript expression finds, for which there is no selector."""
        self._command(f"element/{self.run(f'return {expression}')[ELEMENT]}/click")

    def enter_frame(self, expression: str) -> None:
        """Look at what is in a frame, until `leave_frames`."""
        self._command("frame", id=self.run(f"return {expression}"))

    def leave_frames(self) -> None:
        self._command("frame", id=None)

    def click_twice(self, selector: str) -> None:
        """As an impatient mouse does it."""
        found = self._command("element", using="css selector", value=selector)
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        actions: list[dict[str, Any]] = [{"type": "pointerMove", "origin": found, "x": 0, "y": 0}]
        for pause in (20, 0):
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
            actions += [{"type": "pause", "duration": pause}]
        self._command("actions", actions=[{"type": "pointer", "id": "mouse", "actions": actions}])

    def attach(self, selector: str, file: Path) -> None:
        """Choose a file, as the dialogue of a file field does."""
        found = self._command("element", using="css selector", value=selector)
        self._command(f"element/{found[ELEMENT]}/value", text=str(file))

    def answer_question(self) -> str:
        """Say yes to what the page asks in a dialogue; the question."""
        question = str(self._read("alert/text"))
        self._command("alert/accept")
        return question

    def go_in_with(self, cookie: str, value: str, *, address: str) -> None:
        """Have a cookie of that site."""
        self.open(address)
        self._command("cookie", cookie={"name": cookie, "value": value, "path": "/"})

    def resize(self, width: int, height: int = 1000) -> None:
        """The page itself, without the frame of a window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def prefer(self, colours: str) -> None:
        """`light` or `dark`, as the operating system tells pages."""
        feature = {"name": "prefers-color-scheme", "value": colours}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def forget(self) -> None:
        """Cookies, what the open page's site has stored, complaints, and how pictures are taken."""
        self.devtools("Network.clearBrowserCookies")
        self.run("localStorage.clear(); sessionStorage.clear()")
        self.devtools("Emulation.setScrollbarsHidden", hidden=False)
        self.complaints()

    def hold_still(self) -> None:
        """From the next page on nothing moves or is blurred."""
        self.devtools("Page.addScriptToEvaluateOnNewDocument", source=STILL)

    def picture(self) -> bytes:
        """The whole page as PNG."""
        wanted = {"captureBeyondViewport": True, "optimizeForSpeed": True}
        return base64.b64decode(self.devtools("Page.captureScreenshot", **wanted)["data"])

    def complaints(self) -> list[str]:
        """Errors of scripts and answers that are errors, since they were last asked for."""
        logged = self._checked("log", self._http.post(f"{self._url}/se/log", json={"type": "browser"}))
        messages = [entry["message"] for entry in logged if entry["level"] == "SEVERE"]
        return [one for one in messages if not one.endswith(BROKEN_OFF)]

    def devtools(self, name: str, **params: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self._command("goog/cdp/execute", cmd=name, params=params)

    def wait_for(self, condition: str) -> Any:
        """What the JavaScript expression comes to, once that is true; it is looked at with every frame.

        The page may become another one meanwhile: a script that watches goes with it.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            with suppress(BrowserRefused):
                watched = [condition, LOOK_SECONDS * 1000]
                if found := self._command("execute/async", script=WAITING, args=watched):
                    return found
        raise AssertionError(f"Never: {condition}. {self.text()}")

    def wait_for_text(self, text: str, *, within: str = "body") -> None:
        where = f"document.querySelector({within!r})"
        self.wait_for(f"{where} && {where}.innerText.toLowerCase().includes({text.lower()!r})")

    def text(self, within: str = "body") -> str:
        """What a person reads, with white space squeezed."""
        return " ".join(str(self.run(f"return document.querySelector({within!r}).innerText")).split())

    def run(self, script: str) -> Any:
        return self._command("execute/sync", script=script, args=[])

    def run_async(self, script: str) -> Any:
        """What the script gives its last argument, a function."""
        self._command("timeouts", script=WAIT_SECONDS * 1000)
        try:
            return self._command("execute/async", script=script, args=[])
        finally:
            self._command("timeouts", script=SCRIPT_SECONDS * 1000)

    def _command(self, name: str, **given: Any) -> Any:
        return self._checked(name, self._http.post(f"{self._url}/{name}", json=given))

    def _read(self, name: str) -> Any:
        return self._checked(name, self._http.get(f"{self._url}/{name}"))

    @staticmethod
    def _checked(name: str, response: httpx2.Response) -> Any:
        answer = response.json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise BrowserRefused(f"{name}: {answer['error']}: {answer['message'][:2000]}")
        return answer


@contextmanager
def real_browser(folder: Path) -> Iterator[RealBrowser]:
    """With a profile of its own."""
    assert DRIVER
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [DRIVER, f"--port={port}", "--silent"]
    # Chromium's sandbox does not start for root, whom containers run tests as.
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    arguments += ["--window-size=1400,1000", f"--user-data-dir={folder / 'profile'}"]
    wanted = {
        **({"browserName": "chrome-headless-shell"} if SHELL else {}),
        "goog:chromeOptions": {"binary": BROWSER, "args": arguments},
        "goog:loggingPrefs": {"browser": "ALL"},
        "timeouts": {"script": SCRIPT_SECONDS * 1000},
    }
    with (
        running(command, answers_at=f"{address}/status", log=folder / "chromedriver.log"),
        plain_http.Client(timeout=60) as http,
    ):
        opened = http.post(f"{address}/session", json={"capabilities": {"alwaysMatch": wanted}}).json()
        assert "sessionId" in opened["value"], opened
        session = f"{address}/session/{opened['value']['sessionId']}"
        try:
            yield RealBrowser(http, session)
        finally:
            http.delete(session)
