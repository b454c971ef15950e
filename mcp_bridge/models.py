from django.db import models


class ClientLogLevel(models.Model):
    """The log level of a client with a handshake over HTTP, where no process stores sessions."""

    client = models.CharField(max_length=64, primary_key=True)  # A digest
    level = models.CharField(max_length=16)
    set_at = models.DateTimeField(db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.level
