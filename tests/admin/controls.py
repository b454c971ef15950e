"""Every control of a page is clicked with the mouse: something comes of it, and nothing fails."""

from dataclasses import dataclass, field

from django.db import transaction
from django.test import Client

from tests.admin.window import Window
from tests.e2e.webdriver import BrowserRefused

SWEEP = """
const CONTROLS = `a[href], button, select, summary, [role=tab], [role=button], [role=combobox],
  input:is([type=checkbox], [type=radio], [type=submit], [type=button], [type=image])`;
const ADDRESS = /[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+/g;
const short = (words) => (words ?? '').trim().replace(/\\s+/g, ' ').replace(/[0-9]+/g, 'N').slice(0, 50);
const isElsewhere = (one) => one.matches('a[href]') && !one.getAttribute('href').startsWith('#');
const nameOf = (one) => {
  if (isElsewhere(one)) {
    const {pathname, searchParams} = new URL(one.href);
    return [pathname.replace(ADDRESS, 'N'), ...new Set([...searchParams.keys()].sort())].join(' ');
  }
  const cell = one.closest('#result_list tbody :is(td, th)');
  if (cell) return `in ${cell.className.split(' ')[0]}`;
  if (one.id) return `#${short(one.id)}`;
  if (one.name) return short(one.name) + (one.matches('button, [type=radio]') ? `=${short(one.value)}` : '');
  return short(one.ariaLabel || one.title || one.innerText);
};
window.sweep = {
  /** The controls within that part of the page, tagged with their names; of those of one name the first. */
  collect(page, within) {
    for (const one of document.querySelectorAll('[data-swept]')) delete one.dataset.swept;
    const found = new Map();
    for (const one of document.querySelectorAll(CONTROLS)) {
      const {width, height} = one.getBoundingClientRect();
      const isThere = one.checkVisibility({visibilityProperty: true}) && width > 1 && height > 1;
      // What is chosen already cannot be chosen.
      if (!isThere || one.disabled || !one.closest(within) || one.matches('[type=radio]:checked')) continue;
      const kind = one.matches('input, button') ? `${one.localName}.${one.type}` : one.localName;
      const place = one.closest('#nav-sidebar, #header-inner, #tabs-items') ? 'every page' : page;
      const name = `${place}: ${kind} ${nameOf(one)}`;
      if (found.has(name)) continue;
      if (one.matches('select') && ![...one.options].some((option) => !option.selected)) continue;
      one.dataset.swept = found.size;
      found.set(name, found.size);
    }
    return [...found];
  },
  begin(number) {
    // Not below the bar of buttons.
    document.querySelector(`[data-swept="${number}"]`).scrollIntoView({block: 'center'});
    [this.outcome, this.frames, this.ends] = ['', 0, performance.now() + 3000];
  },
  tell(outcome) {
    this.outcome ||= outcome;
  },
  /** What came of it, once the page shows it; nothing, if nothing does. */
  told() {
    const isOver = performance.now() > this.ends;
    if (/^(get|post) /.test(this.outcome)) return this.outcome;
    if (!this.outcome) return isOver && 'nothing';
    return (++this.frames > 2 && !document.querySelector('.htmx-request') || isOver) && this.outcome;
  },
};
new MutationObserver((changes) => {
  const one = changes.find(({attributeName}) => attributeName !== 'data-swept');
  if (one) sweep.tell(`changes ${one.target.nodeName} ${one.attributeName ?? one.type}`);
}).observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
for (const name of ['change', 'hashchange', 'htmx:beforeRequest']) {
  addEventListener(name, () => sweep.tell(name), true);
}
addEventListener('focusin', ({target}) => target.dataset.swept || sweep.tell('focus'));
// The page stays: where links and forms lead is looked at apart, and what forms do.
addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href]');
  if (!link || event.defaultPrevented || !isElsewhere(link)) return;
  event.preventDefault();
  sweep.tell(`get ${link.href}`);
});
addEventListener('submit', (event) => {
  const {target: form, submitter} = event;
  event.preventDefault();
  event.stopImmediatePropagation();
  sweep.sent = [...new FormData(form, submitter)].filter(([, value]) => typeof value === 'string');
  const data = new URLSearchParams(sweep.sent);
  const {'hx-post': posts, 'hx-get': gets, method: usual, action: place} = form.attributes;
  const method = posts ? 'post' : usual?.value || 'get';
  const action = (posts ?? gets ?? place)?.value ?? '';
  sweep.tell(`${method} ${new URL(action.split('?')[0], location)}?${method === 'get' ? data : ''}`);
}, true);
window.confirm = window.alert = window.open = () => sweep.tell('asks');
"""
IN_A_THREAD = "/cancel/"
"""What works there would wait for the transaction around it; test_buttons_in_a_browser.py presses it."""


@dataclass
class Sweep:
    """Of pages, one after another; what is wrong is collected."""

    window: Window
    client: Client
    clicked: dict[str, str] = field(default_factory=dict)
    """What came of it, by page and control."""
    faults: list[str] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)

    def page(self, name: str, address: str, within: str) -> None:
        """Click on each control, and on those that it brings up."""
        self._name, self._address, self._within = name, address, within
        self._open()
        self.window.browser.complaints()
        todo = [(one, ()) for one in self._fresh()]
        while todo:
            control, path = todo.pop(0)
            try:
                outcome = self._click(control)
            except BrowserRefused:  # Something lies over it, or it is not there any more
                self._open()
                for opener in path:
                    self._click(opener)
                outcome = self._click(control)
            self._note(control, outcome)
            if not outcome.startswith(("get ", "post ")):
                todo[:0] = [(one, (*path, control)) for one in self._fresh()]

    def _open(self) -> None:
        self.window.open(self._address)
        self.window.run(SWEEP)

    def _collect(self) -> dict[str, int]:
        """The mark of each control by its name."""
        if self.window.run("return !window.sweep"):  # The control led to another page after all
            self._open()
        return dict(self.window.run(f"return sweep.collect({self._name!r}, {self._within!r})"))

    def _fresh(self) -> list[str]:
        fresh = [name for name in self._collect() if name not in self.clicked]
        self.clicked |= dict.fromkeys(fresh, "")
        return fresh

    def _click(self, control: str) -> str:
        found = self._collect()
        if control not in found:
            raise BrowserRefused(f"{control} is not there.")
        self.window.run(f"sweep.begin({found[control]})")
        option = " option:not(:checked)" if ": select " in control else ""
        self.window.click(f'[data-swept="{found[control]}"]{option}')
        return str(self.window.browser.wait_for("window.sweep ? sweep.told() : 'leaves'"))

    def _note(self, control: str, outcome: str) -> None:
        self.clicked[control] = outcome
        if outcome == "nothing":
            self.faults.append(f"{control}: {outcome}")
        if complaints := self.window.browser.complaints():
            self.faults.append(f"{control}: {complaints}")
        method, _, address = outcome.partition(" ")
        if method in ("get", "post") and address.startswith(self.window.site):
            self._send(control, method, address.removeprefix(self.window.site))

    def _send(self, control: str, method: str, path: str) -> None:
        """Where a link leads, and what the server answers to the form as it was filled in."""
        there = control.partition(": ")[2]
        if (method == "get" and there in self.answered) or path.partition("?")[0].endswith(IN_A_THREAD):
            return
        self.answered.add(there)
        cookies = dict(self.client.cookies)
        if method == "get":
            answer = self.client.get(path)
        else:
            sent: dict[str, list[str]] = {}
            for name, value in self.window.run("return sweep.sent"):
                sent.setdefault(name, []).append(value)
            with transaction.atomic():
                answer = self.client.post(path, sent)
                transaction.set_rollback(True)  # The next one finds the page as it was
        if answer.streaming:
            # A cursor that stays open would keep this connection from writing after others have.
            b"".join(answer.streaming_content)
        self.client.cookies.update(cookies)  # It may have been the button that logs out
        if answer.status_code >= 400 or answer.headers.get("Location", "").startswith("/admin/login/?"):
            self.faults.append(f"{control} sends {method} {path}: {answer.status_code}")
