"""What access tokens can allow; every door asks for these."""

from django.db import models


class Scope(models.TextChoices):
    """What a token allows."""

    READ = "workflows:read", "list workflows and read one's own executions"
    RUN = "workflows:run", "start and cancel executions"
    ADMIN = "catalogue:admin", "curate by REST and see all executions"
