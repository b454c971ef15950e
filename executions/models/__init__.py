from executions.models.approval import Approval, ApprovalDecision, ApprovalNotice, StandingApproval
from executions.models.execution import (
    ACTIVE,
    FINAL,
    OPEN,
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
from executions.models.result_cache import CachedOutput, CachedResult, CachePolicy, CacheUse
from executions.models.usage import HourlyUsage, StatisticsState

__all__ = [
    "ACTIVE", "FINAL", "OPEN", "Approval", "ApprovalDecision", "ApprovalNotice", "CachePolicy", "CacheUse",
    "CachedOutput", "CachedResult", "CancelProgress", "ErrorKind", "Execution", "ExecutionEvent",
    "ExecutionPayload", "FailureEffect", "HourlyUsage", "InputRequest", "Retention", "StandingApproval",
    "State", "StatisticsState", "WorkerPresence",
]  # fmt: skip
