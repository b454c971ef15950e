from typing import Any

from django.http import HttpRequest
from django.views.debug import SafeExceptionReporterFilter


class WithoutValues(SafeExceptionReporterFilter):
    """Debug pages without the values of variables and forms, among which are credentials on their way."""

    def is_active(self, request: HttpRequest | None) -> bool:
        return True

    def get_post_parameters(self, request: HttpRequest | None) -> dict[str, Any]:
        return {} if request is None else dict.fromkeys(request.POST, self.cleansed_substitute)

    def get_traceback_frame_variables(self, request: Any, tb_frame: Any) -> Any:
        return [(name, self.cleansed_substitute) for name in tb_frame.f_locals]
