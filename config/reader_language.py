"""Pages for people in the language that they chose in the menu, or else in that of their browser."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.utils import translation
from django.utils.cache import patch_vary_headers

from config.reader_zone import FOR_MACHINES

FOR_PEOPLE = ("/admin/", "/login/", "/oauth/authorize", "/oauth/sign-in", "/oauth/applications")


class ReaderLanguage:
    """Django's LocaleMiddleware would also translate what programs and models read: they get English."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        if not path.startswith(FOR_PEOPLE) or path.endswith(FOR_MACHINES):
            return self._get_response(request)
        language = translation.get_language_from_request(request)
        with translation.override(language):
            response = self._get_response(request)
        response.setdefault("Content-Language", language)
        patch_vary_headers(response, ("Accept-Language",))
        return response
