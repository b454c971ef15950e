"""The documentation's pictures of cards: `make pictures` renews them; any other run sees that it could."""

import base64
import os

import pytest

from tests.e2e.cards.fixtures import browser, cards_product, chat, host, in_a_browser, node, rest
from tests.processes import ROOT

__all__ = ["browser", "cards_product", "chat", "host", "node", "rest"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), in_a_browser]

INVOICE = {"number": "2026-1142", "amount": 4800, "currency": "EUR"}
SHOWN = {
    "card-result": ("Which orders are open?", "open_orders", {}, "A-1048", 540),
    "card-approval": ("Pay invoice 2026-1142, please.", "pay_invoice", INVOICE, "expires in", 560),
}


def test_the_pictures_of_cards_can_be_taken(chat, browser, rest):
    rest.patch("/workflows/pay_invoice/", title="Pay an invoice")
    rest.patch("/workflows/open_orders/", title="Open orders")
    browser.devtools("Emulation.setScrollbarsHidden", hidden=True)
    for name, (said, tool, arguments, words, height) in SHOWN.items():
        browser.resize(762, height)
        page = chat()
        browser.run(f"host.say({said!r})")
        page.call(tool, arguments)
        page.wait_for_text(words)
        page.wait_until_still()
        page.leave()
        shot = browser.devtools("Page.captureScreenshot", format="webp", quality=80)
        picture = base64.b64decode(shot["data"])
        assert 5_000 < len(picture) < 150_000, name
        assert page.complaints() == []
        if os.environ.get("PICTURES") == "docs":
            (ROOT / "docs" / "pictures" / f"{name}.webp").write_bytes(picture)
