from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import models

from catalogue.fields import JSONTextField
from executions.models.record import ExecutionRecord

SAID_BY = "said_by"  # The name in `metadata` of the administrator who resolved the run by hand


class ExecutionPayload(models.Model):
    """Apart from the row, which lists and counters read."""

    execution = models.OneToOneField(
        "executions.Execution", on_delete=models.CASCADE, primary_key=True, related_name="payload"
    )
    input = JSONTextField(default=dict, null=True, help_text="Empty once the retention has removed it.")
    output = JSONTextField(null=True)
    content = JSONTextField(
        null=True, help_text="The output as MCP content blocks, if the engine returns them."
    )
    start_answer = JSONTextField(null=True, help_text="The engine's raw answer to the start.")
    status_answer = JSONTextField(null=True, help_text="The engine's last raw status.")
    metadata = JSONTextField(default=dict, help_text="Which version of the workflow ran, for which client.")
    cut = JSONTextField(default=list, help_text="Which of them were too large to keep whole.")
    shares_output = models.BooleanField(
        default=False,
        help_text="The output is large and from the result cache: it is stored with the original run.",
    )

    def __str__(self) -> str:
        return f"payload of {self.pk}"

    @classmethod
    def from_db(cls, *args: Any, **options: Any) -> ExecutionPayload:
        """Fetches an output that is stored with another run."""
        payload = super().from_db(*args, **options)
        if {"output", "content", "shares_output"} <= payload.__dict__.keys() and payload.shares_output:
            origin = cls.objects.filter(execution__answered_from_cache=payload.pk)
            kept = origin.values_list("output", "content").first()
            payload.output, payload.content = kept or (None, None)
        return payload

    @classmethod
    def leave_out_too_large(
        cls, execution: ExecutionRecord, sizes: Mapping[str, int], values: dict[str, Any]
    ) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """The values to store, and lines for the timeline; one that is too large is left out."""
        limit = settings.CATALOGUE["max_payload_bytes"]
        too_large = {name: size for name, size in sizes.items() if size > limit}
        if not too_large:
            return values, []
        cut = [{"payload": name, "bytes": size} for name, size in too_large.items()]
        known = cls.objects.values_list("cut", flat=True).get(pk=execution.pk)
        lines = [
            ("cut", f"The {name} of {size} bytes is over the limit of {limit}.")
            for name, size in too_large.items()
        ]
        return values | dict.fromkeys(too_large) | {"cut": known + cut}, lines

    @staticmethod
    def note_changes(execution: ExecutionRecord, values: Mapping[str, Any]) -> None:
        """An instance that was read before would stay stale."""
        if (known := execution._state.fields_cache.get("payload")) is not None:
            for name, value in values.items():
                setattr(known, name, value)


class InputRequest(models.Model):
    """What a run asks its caller while it goes on, one row at a time; gone once the run has the answers."""

    execution = models.OneToOneField(
        "executions.Execution", on_delete=models.CASCADE, related_name="asked_input"
    )
    requests = JSONTextField(help_text="MCP's requests to a client, by key.")
    responses = JSONTextField(default=dict, help_text="Their results so far, by key.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"input for {self.execution_id}"

    @property
    def is_answered(self) -> bool:
        return set(self.requests) <= set(self.responses)


def size_of(value: Any) -> int:
    """In bytes of JSON."""
    return len(json.dumps(value))
