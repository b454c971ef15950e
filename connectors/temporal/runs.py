"""How a run is named to the rest of the product: by its workflow id and the first of its run ids.

A run that continues as new, or is tried again, gets further run ids; they all know the first one.
"""

import re
from dataclasses import dataclass

RUN_ID_LIMIT = 255
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
WORKFLOW_ID_LIMIT = RUN_ID_LIMIT - 37


@dataclass(frozen=True, slots=True)
class TemporalRun:
    workflow_id: str
    first_run_id: str
    """Empty: whichever run has the workflow id now."""

    def __str__(self) -> str:
        return f"{self.workflow_id}/{self.first_run_id}" if self.first_run_id else self.workflow_id


def parse_run(text: str) -> TemporalRun:
    """`workflow-id/run-id`; what does not end like that is a workflow id."""
    workflow_id, slash, run_id = text.rpartition("/")
    if slash and workflow_id and UUID.fullmatch(run_id):
        return TemporalRun(workflow_id, run_id)
    return TemporalRun(text, "")
