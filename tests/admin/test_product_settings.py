"""The page of the product's settings."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from catalogue.models import HistoryEntry, ProductSettings
from tests.admin.pages import text_of

pytestmark = pytest.mark.django_db(transaction=True)


def page() -> str:
    return reverse("admin:catalogue_productsettings_change", args=[ProductSettings.ONLY])


def save(client: Client, **fields: str) -> Any:
    return client.post(page(), fields, follow=True)


def test_the_page_says_what_holds_and_where_it_comes_from(admin_client):
    """A4.4"""
    listed = admin_client.get(reverse("admin:catalogue_productsettings_changelist"), follow=True)
    assert listed.redirect_chain[0][0] == page()
    shown = text_of(listed)
    for part in (
        "Discovery and starts",
        "Limits",
        "Now 300, from the defaults (CATALOGUE_EXECUTION_TIMEOUT)",
    ):
        assert part in shown, part

    shown = text_of(save(admin_client, execution_timeout="42"))

    assert "Changed here; empty: 300, from the defaults" in shown


def test_a_change_takes_effect_and_the_history_says_from_what_to_what(admin_client, settings):
    """A4.4"""
    save(admin_client, discovery_enabled="false", max_concurrent_executions="10")

    assert settings.CATALOGUE.discovery_enabled is False
    assert settings.CATALOGUE.max_concurrent_executions == 10
    history = text_of(
        admin_client.get(reverse("admin:catalogue_productsettings_history", args=[ProductSettings.ONLY]))
    )
    assert "max_concurrent_executions from 1000 (environment) to 10" in history

    save(admin_client, max_concurrent_executions="10")
    assert settings.CATALOGUE.discovery_enabled is True
    assert HistoryEntry.objects.filter(model="catalogue.productsettings").count() == 2


def test_its_address_opens_before_anything_was_changed(admin_client):
    """A4.4: a bookmark of another installation's page, for instance."""
    assert not ProductSettings.objects.exists()
    assert admin_client.get(page()).status_code == 200


def test_what_is_out_of_bounds_is_said_at_its_field(admin_client, settings):
    """A4.4, B4"""
    shown = text_of(save(admin_client, execution_timeout="0", retry_attempts="11", inline_wait="3"))

    assert "This must be at least 1." in shown and "This must be at most 10." in shown
    assert settings.CATALOGUE.inline_wait == 50


def test_large_numbers_are_shown_to_the_last_digit(admin_client, staff_with):
    """A4.4: what the page says of a value is that value."""
    save(admin_client, max_concurrent_executions="1000000")
    assert ": 1,000,000 Maximum number of concurrent runs" in text_of(
        staff_with("view_productsettings").get(page())
    )
