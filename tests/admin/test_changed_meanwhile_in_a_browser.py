"""A change form that was opened before somebody else saved, in a real browser."""

import pytest

from catalogue.models import Toolset
from tests.admin.pages import page_url
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.factories import make_toolset

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]


def test_what_another_changed_meanwhile_is_told_and_the_second_save_saves(window):
    """D5: with the scripts of the form, which adds rows and refuses to be sent twice."""
    toolset = make_toolset("finance", rules=["a", "b"], title="Old")
    window.open(page_url(toolset))
    Toolset.objects.update(title="Theirs", description="Theirs too")
    toolset.rules.filter(pattern="a").update(note="Theirs")
    toolset.rules.filter(pattern="b").delete()
    window.run("document.querySelector('[name=title]').value = 'Mine'")
    window.browser.complaints()
    window.click_through("[name=_continue]")
    assert "Nothing was saved" in window.browser.text() and "is now: Theirs" in window.browser.text()
    window.click_through("[name=_continue]")
    assert "was changed successfully" in window.browser.text()
    assert window.browser.complaints() == []
    toolset.refresh_from_db()
    assert (toolset.title, toolset.description) == ("Mine", "Theirs too")
    assert list(toolset.rules.values_list("pattern", "note")) == [("a", "Theirs")]
