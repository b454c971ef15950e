"""What a workflow's definition says about how Temporal is to run it: its `metadata["temporal"]`."""

from string import Formatter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from connectors.errors import Misconfigured

METADATA_KEY = "temporal"
EXECUTION_ID = "execution_id"
WORKFLOW = "workflow"
MAX_TIMEOUT_SECONDS = 2_592_000.0
"""30 days."""


class TemporalSettings(BaseModel):
    """One workflow's part of Temporal; empty fields are left to the source and to Temporal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_queue: str = Field(default="", max_length=255)
    """Empty: the source's default task queue."""
    workflow_id: str = Field(default="{execution_id}", min_length=1, max_length=255)
    """The recipe of the workflow ids: may contain {execution_id}, {workflow} and names of arguments."""
    workflow_id_defaults: dict[str, str | int | float] = Field(default_factory=dict)
    """What stands in the recipe for arguments that are left out."""
    id_reuse_policy: Literal["", "allow_duplicate", "allow_duplicate_failed_only", "reject_duplicate"] = ""
    """May an id be used again after its run has ended; empty: no for ids of ours, else yes."""
    id_conflict_policy: Literal["", "fail", "use_existing", "terminate_existing"] = ""
    """What becomes of a start while a run with its id goes on; empty: it fails."""
    input: Literal["object", "none", "positional"] = "object"
    """All arguments as one object, nothing, or each as an input of its own in `input_order`."""
    input_order: list[str] = Field(default_factory=list)
    """Names of the arguments, for positional input."""
    progress_query: str = Field(default="", max_length=255)
    """A query of the workflow that says how far it is; empty: its activities' heartbeats say so."""
    execution_timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    """Seconds for all runs together; None: until the execution's own deadline."""
    run_timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    """Seconds for one run of those that continue as new."""
    task_timeout: float | None = Field(default=None, gt=0, le=120)
    """Seconds for one step of the workflow's own code."""

    @field_validator("workflow_id")
    @classmethod
    def _readable_recipe(cls, recipe: str) -> str:
        placeholders_in(recipe)
        return recipe

    @property
    def id_is_ours(self) -> bool:
        """No other execution can have the same workflow id."""
        return EXECUTION_ID in placeholders_in(self.workflow_id)


def settings_of(metadata: dict[str, Any]) -> TemporalSettings:
    """Raises Misconfigured for what no definition of ours carries."""
    try:
        return TemporalSettings.model_validate(metadata.get(METADATA_KEY) or {})
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        told = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise Misconfigured(f"The workflow's Temporal settings cannot be used: {told}.") from None


def placeholders_in(recipe: str) -> list[str]:
    """The names in braces, in their order. Raises ValueError for a recipe that is none."""
    try:
        parts = list(Formatter().parse(recipe))
    except ValueError:
        raise ValueError("has a brace without its partner") from None
    names = [name for _, name, _, _ in parts if name is not None]
    if any(specification or conversion for _, _, specification, conversion in parts):
        raise ValueError("may have names in braces, without ':' or '!'")
    if not all(name.isidentifier() for name in names):
        raise ValueError("may have names of arguments in braces, nothing else")
    return names
