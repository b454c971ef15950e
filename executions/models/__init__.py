from executions.models.execution import Execution
from executions.models.payload import ExecutionPayload
from executions.models.record import ExecutionEvent, Retention, WorkerPresence
from executions.models.result_cache import CachedOutput, CachedResult, CachePolicy, CacheUse
from executions.models.states import ACTIVE, FINAL, Aftermath, CancelProgress, ErrorKind, State
from executions.models.usage import HourlyUsage, StatisticsState

__all__ = [
    "ACTIVE", "FINAL", "Aftermath", "CachePolicy", "CacheUse", "CachedOutput", "CachedResult",
    "CancelProgress", "ErrorKind", "Execution", "ExecutionEvent", "ExecutionPayload", "HourlyUsage",
    "Retention", "State", "StatisticsState", "WorkerPresence",
]  # fmt: skip
