from django.db import models


class RateBucket(models.Model):
    """How far the calls of one rate are booked ahead (GCRA); `executions.rates` writes it."""

    key = models.CharField(max_length=255, primary_key=True)
    booked_until = models.BigIntegerField()  # Microseconds since 1970

    def __str__(self) -> str:
        return self.key
