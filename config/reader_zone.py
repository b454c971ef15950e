"""Times in the zone of the person who reads the admin."""

from collections.abc import Callable
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

COOKIE = "zone"  # Set by zone.js
ADMIN = "/admin/"
FOR_MACHINES = ("/csv/", "/export/")  # The ends of addresses of files, which keep to UTC


@lru_cache(maxsize=1)
def _known_zones() -> frozenset[str]:
    return frozenset(available_timezones())


class ReaderZone:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        zone = request.COOKIES.get(COOKIE)
        is_page = request.path_info.startswith(ADMIN) and not request.path_info.endswith(FOR_MACHINES)
        if zone is None or not is_page or zone not in _known_zones():
            return self._get_response(request)
        with timezone.override(ZoneInfo(zone)):
            return self._get_response(request)
