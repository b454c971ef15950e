"""What access tokens can allow; every door asks for these."""

from django.db import models


class Scope(models.TextChoices):
    """What a token allows."""

    READ = "workflows:read", "list workflows and read one's own executions"
    RUN = "workflows:run", "start executions, and read and cancel those"
    ADMIN = "catalogue:admin", "all that, curate by REST and see all executions"
