"""The workflows this engine offers, by id."""

from examples.engine.workflows import (
    countdown,
    csv_profile,
    date_range,
    json_diff,
    markdown_outline,
    project_forecast,
    text_redact,
    text_statistics,
)
from examples.engine.workflows.definition import Workflow

MODULES = (
    text_statistics,
    csv_profile,
    countdown,
    json_diff,
    date_range,
    text_redact,
    project_forecast,
    markdown_outline,
)

WORKFLOWS: dict[str, Workflow] = {module.WORKFLOW.id: module.WORKFLOW for module in MODULES}


def name_of(workflow_id: str) -> str | None:
    """A workflow's name; None for one that only exists in old runs."""
    workflow = WORKFLOWS.get(workflow_id)
    return workflow.name if workflow else None
