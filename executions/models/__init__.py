from executions.models.approval import Approval, ApprovalDecision, ApprovalNotice, StandingApproval
from executions.models.execution import (
    ACTIVE,
    FINAL,
    OPEN,
    RUNS_HIDDEN,
    CancelProgress,
    ErrorKind,
    ExecutionEvent,
    ExecutionPayload,
    FailureEffect,
    InputRequest,
    Retention,
    State,
    WorkerPresence,
)
from executions.models.lifecycle import Execution
from executions.models.report import ProblemReport
from executions.models.result_cache import CachedOutput, CachedResult, CachePolicy, CacheUse
from executions.models.subscription import Event, EventKind, EventNotice, RunNotice, Subscription
from executions.models.usage import HourlyUsage, StatisticsState

__all__ = [
    "ACTIVE",
    "FINAL",
    "OPEN",
    "RUNS_HIDDEN",
    "Approval",
    "ApprovalDecision",
    "ApprovalNotice",
    "CachePolicy",
    "CacheUse",
    "CachedOutput",
    "CachedResult",
    "CancelProgress",
    "ErrorKind",
    "Event",
    "EventKind",
    "EventNotice",
    "Execution",
    "ExecutionEvent",
    "ExecutionPayload",
    "FailureEffect",
    "HourlyUsage",
    "InputRequest",
    "ProblemReport",
    "Retention",
    "RunNotice",
    "StandingApproval",
    "State",
    "StatisticsState",
    "Subscription",
    "WorkerPresence",
]  # fmt: skip
