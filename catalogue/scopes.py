"""What access tokens can allow; every door asks for these."""

from django.db import models


class Scope(models.TextChoices):
    """What a token allows."""

    READ = "workflows:read", "list workflows and read one's own executions"
    RUN = "workflows:run", "start executions, and read and cancel those"
    VIEW = "catalogue:read", "see by REST all that administrators see, and change nothing"
    ADMIN = "catalogue:admin", "all that, curate by REST and see all executions"
