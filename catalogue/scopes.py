from django.db import models


class Scope(models.TextChoices):
    READ = "workflows:read", "list workflows and read one's own executions"
    RUN = "workflows:run", "start executions, and read and cancel those"
    VIEW = "catalogue:read", "see by REST all that administrators see, and change nothing"
    ADMIN = "catalogue:admin", "everything, curating by REST and all executions included"
