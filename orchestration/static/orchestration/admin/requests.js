"use strict";

// The pages of natural-language requests work without this: it shows the stages as they happen, without leaving the page.
// What it puts into the page is HTML that the server has rendered and escaped.

const ASK_AGAIN_MS = 500;
const LONGEST_SILENCE_MS = 10_000;

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** A UUID of version 4; `crypto.randomUUID` is for pages over HTTPS only. */
const newId = () => {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const digits = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
};

/** `{request}`, the record's id, or `{problems}`. Throws where it is not known what became of it. */
const post = async (address, body) => {
  const answer = await fetch(address, { method: "POST", body, headers: { Accept: "application/json" } });
  if (answer.headers.get("Content-Type")?.startsWith("application/json")) return answer.json();
  if (answer.status >= 500) throw new Error(`The server answered ${answer.status}.`);
  const why = answer.redirected ? "You are no longer logged in." : `The server answered ${answer.status}.`;
  return { problems: [`${why} Nothing was asked; reload the page and try again.`] };
};

class RequestPage {
  #busy = false;

  constructor(record) {
    this.record = record;
    this.form = document.getElementById("try-form");
    this.status = document.getElementById("progress");
    this.problems = document.getElementById("problems");
    this.form?.addEventListener("submit", (event) => this.#ask(event));
    record.addEventListener("submit", (event) => this.#send(event));
    if ("running" in record.dataset) this.#alone(() => this.#follow(record.dataset.progress));
  }

  #ask(event) {
    event.preventDefault();
    const body = new FormData(this.form);
    const { name, value } = event.submitter ?? { name: "dry_run", value: "1" };
    body.set(name, value);
    body.set("id", newId());
    this.#alone(() => this.#request(this.form.action, body));
  }

  #send(event) {
    event.preventDefault();
    this.#alone(() => this.#request(event.target.action, new FormData(event.target)));
  }

  /** One thing at a time: what is pressed meanwhile is not done. */
  async #alone(act) {
    if (this.#busy) return;
    this.#lock(true);
    this.#complain([]);
    try {
      await act();
    } catch (error) {
      this.#tell("");
      this.#complain([error.message]);
    } finally {
      this.#lock(false);
    }
  }

  #lock(busy) {
    this.#busy = busy;
    for (const button of document.querySelectorAll("#try-form [type=submit], [data-send] [type=submit]")) {
      // Not `disabled`, which would take the focus from whoever pressed it.
      button.setAttribute("aria-disabled", String(busy));
    }
  }

  /** Post, and show the record while the answer is awaited; an answer that got lost is in the record, too. */
  async #request(address, body) {
    this.#tell("Asking …");
    const own = this.#progressOf(body.get("id"));
    let answer = null;
    const posting = post(address, body).then(
      (given) => (answer = given),
      () => (answer = {}),
    );
    while (answer === null) {
      await Promise.race([posting, pause(ASK_AGAIN_MS)]);
      const shown = answer === null && (await this.#show(own).catch(() => null));
      if (shown) this.#remember(own);
      // Whoever sees that it has ended presses the next button, and need not wait for the answer to this one.
      if (shown && !shown.isRunning) return this.#leave(own);
    }
    if (answer.problems) {
      this.#tell("");
      this.#complain(answer.problems);
      return;
    }
    const progress = answer.request ? this.#progressOf(answer.request) : own;
    await this.#follow(progress);
    this.#remember(progress);
    this.#leave(progress);
  }

  /** From a record's own page to that of the one that was made of it. */
  #leave(progress) {
    if (!this.form) location.assign(progress.replace(/progress\/$/, "change/"));
  }

  #progressOf(id) {
    return this.record.dataset.progress.replace(/[^/]+(?=\/progress\/$)/, id);
  }

  /** Show the record until it has ended. */
  async #follow(progress) {
    let heardAt = Date.now();
    for (;;) {
      const shown = await this.#show(progress).catch(() => null);
      if (shown && !shown.isRunning) return;
      if (shown) heardAt = Date.now();
      if (Date.now() - heardAt > LONGEST_SILENCE_MS) {
        throw new Error("The server did not report the outcome of the request. The list of requests shows whether it started.");
      }
      await pause(ASK_AGAIN_MS);
    }
  }

  /** The record as it is now; null where there is none yet. */
  async #show(progress) {
    const answer = await fetch(progress, { headers: { Accept: "text/html" } });
    if (!answer.ok) return null;
    const page = document.createElement("template");
    page.innerHTML = await answer.text();
    const { told, running } = page.content.firstElementChild.dataset;
    if (told === undefined) return null;
    this.#tell(told);
    const isRunning = running !== undefined;
    // Whoever is in it with the keyboard would be thrown out each time.
    if (!(isRunning && this.record.contains(document.activeElement))) {
      this.record.replaceChildren(page.content);
      this.#lock(this.#busy);
    }
    return { isRunning };
  }

  /** A reload shows the same record; whoever looks at the form is led to where it appears. */
  #remember(progress) {
    const [, id] = progress.match(/([^/]+)\/progress\/$/);
    if (!this.form || location.search === `?request=${id}`) return;
    history.replaceState(null, "", `${this.form.action}?request=${id}`);
    this.record.scrollIntoView();
  }

  #tell(text) {
    // Said once, not with each look at it.
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  #complain(problems) {
    this.problems.textContent = problems.join("\n");
    this.problems.hidden = !problems.length;
    if (problems.length) this.problems.focus();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const record = document.getElementById("record");
  if (record) new RequestPage(record);
});
