"""Hands on a keyboard: keys are counted, and at each stop the focus has to be there and to be seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.admin.window import Window
from tests.e2e.webdriver import CONTROL, ENTER, SHIFT, TAB

WATCH = """
(() => {
  const STOPS = 'a[href], button, input, select, textarea, summary, [tabindex]';
  /** The rings of an element, or of what surrounds it: a field's may be drawn around its icon too. */
  const ringsOf = (one) => {
    const rings = [];
    for (let part = one; part && rings.length < 12; part = part.parentElement) {
      const {outlineStyle, outlineWidth, outlineColor, boxShadow} = getComputedStyle(part);
      const isDrawn = outlineStyle !== 'none' && parseFloat(outlineWidth);
      rings.push(isDrawn ? `${outlineWidth} ${outlineColor}` : 'none', boxShadow);
    }
    return rings;
  };
  const before = new WeakMap();
  addEventListener('keydown', () => {
    for (const one of document.querySelectorAll(STOPS)) {
      if (one !== document.activeElement) before.set(one, ringsOf(one));
    }
  }, true);
  const isInSight = (one) => {
    const {left, right, top, bottom} = one.getBoundingClientRect();
    const across = [left + 3, (left + right) / 2, right - 3];
    const down = [top + 3, (top + bottom) / 2, bottom - 3];
    return across.some((x) => down.some((y) => {
      const there = document.elementFromPoint(x, y);
      return there && (one.contains(there) || there.contains(one));
    }));
  };
  /** What is wrong with the focus, or nothing. */
  window.faultOfFocus = () => {
    const one = document.activeElement;
    if (!one || one === document.body) return 'The focus is lost.';
    const rings = ringsOf(one), earlier = before.get(one);
    const isMarked = earlier ? rings.some((ring, at) => ring !== earlier[at]) : rings[0] !== 'none';
    const fault = !isMarked ? 'is not marked' : isInSight(one) ? '' : 'is out of sight';
    return fault && `${one.outerHTML.slice(0, 300)} ${fault}.`;
  };
})();
"""
IS_STILL = "!document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')"


@dataclass
class Keyboard:
    """Everything by real strokes: nothing is clicked, and no script gives the focus to anything."""

    window: Window
    count: int = 0
    """Of strokes; typed texts are not counted, two keys held together are one."""

    def press(self, *keys: str, until: str = "") -> None:
        """One after another; the focus is looked at after each, once the page is still and this holds."""
        for key in keys:
            self.count += 1
            self.window.browser.press(key)
            self.look(until)

    def press_together(self, held: str, key: str, *, until: str = "") -> None:
        self.count += 1
        self.window.browser.press_together(held, key)
        self.look(until)

    def follow(self, key: str = ENTER) -> None:
        """Press what leads to another page, where the focus begins anew."""
        self.count += 1
        self.window.follow_key(key)

    def type(self, text: str) -> None:
        """In place of what the focused field has."""
        self.press_together(CONTROL, "a")
        self.window.browser.press(text)

    def skip_to_the_content(self) -> None:
        self.press(TAB, ENTER)

    def tab_to(self, selector: str, *, back: bool = False, most: int = 60) -> None:
        for _ in range(most):
            if back:
                self.press_together(SHIFT, TAB)
            else:
                self.press(TAB)
            if self.window.run(f"return document.activeElement.matches({selector!r})"):
                return
        raise AssertionError(f"Tab does not lead to {selector}: {self.window.browser.text()}")

    def look(self, until: str = "") -> None:
        """At where the focus is."""
        if until:
            self.window.browser.wait_for(f"{IS_STILL} && ({until})")
        fault = self.window.run("return faultOfFocus()")
        assert not fault, fault


@contextmanager
def watched_keyboard(window: Window) -> Iterator[Keyboard]:
    """Pages that are opened within the block watch their focus."""
    added = window.browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    try:
        yield Keyboard(window)
    finally:
        window.browser.devtools("Page.removeScriptToEvaluateOnNewDocument", **added)
