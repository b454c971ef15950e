"""The API's description as pages: Swagger UI to try it, ReDoc to read it, both from this server alone."""

from typing import Any

from django.conf import settings
from django.contrib.auth.mixins import LoginRequiredMixin
from django.urls import reverse_lazy
from django.views.generic import TemplateView


class ApiDocs(LoginRequiredMixin, TemplateView):
    """For people who are signed in: the description itself is for nobody else."""

    template_name = "catalogue/rest/docs.html"
    login_url = reverse_lazy("admin:login")
    viewer = "swagger"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        title = {"swagger": "Swagger UI", "redoc": "ReDoc"}[self.viewer]
        told = {"viewer": self.viewer, "title": title, "favicon": settings.STATIC_URL + settings.FAVICON}
        return {**super().get_context_data(**kwargs), **told}
