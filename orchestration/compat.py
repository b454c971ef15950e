"""Uses of private names of other packages; tests/config/test_private_names.py fails when one is gone."""

from django.http import HttpResponseBase


def mark_logged(response: HttpResponseBase) -> None:
    """Keep Django from logging an error response."""
    response._has_been_logged = True  # type: ignore[attr-defined]
