"""How many executions run at a time, and who is next."""

from catalogue.models import Workflow
from executions.callers import Caller


def admit(workflow: Workflow, caller: Caller) -> bool:
    """Within the transaction that records an execution: whether there is room for it now.

    False: it has to wait in the queue. Raises Busy where the queue is full too.
    """
    return True
