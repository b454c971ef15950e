"""Why a request in words was not even begun.

RequestRefused
├── IdempotencyConflict   its key was used for another request
├── NothingToSend         what it is to carry out is no dry run of its caller's that succeeded
└── StillGoingOn          it came again while the first of its key goes on
"""

from orchestration.models import WorkflowRequest


class RequestRefused(Exception):
    """Nothing was recorded and nothing was started; the message says what to do instead."""

    def __init__(self, message: str, request: WorkflowRequest) -> None:
        super().__init__(message)
        self.request = request
        """The one that the key belongs to."""


class IdempotencyConflict(RequestRefused):
    """The caller used this key before, for something else."""

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            f"This idempotency key belongs to the request {request.pk}, which asks for something else. Use a "
            "new key for a new request; nothing was started.",
            request,
        )


class NothingToSend(RequestRefused):
    """Only a dry run can be carried out later, by whoever asked for it."""

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            "Only your own dry run that succeeded, and whose arguments are kept, can be sent. Ask anew; "
            "nothing was started.",
            request,
        )


class StillGoingOn(RequestRefused):
    """The request that the key stands for has no answer yet."""

    def __init__(self, request: WorkflowRequest) -> None:
        super().__init__(
            f"The request {request.pk}, which this idempotency key stands for, is still going on. Ask again "
            "later with the same key; nothing was started twice.",
            request,
        )
