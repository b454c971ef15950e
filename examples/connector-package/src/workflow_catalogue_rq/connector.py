"""RQ's queues as an engine: a run is a job, and its id is the key that it was started with."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from pydantic import BaseModel
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    InvalidResponse,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry
from rq import Queue, Worker
from rq.command import send_stop_job_command
from rq.exceptions import DeserializationError, DuplicateJobError, InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, InvalidAnswer, NotFound, OutcomeUnknown, Rejected, Unreachable
from connectors.protocol import (
    Capabilities,
    Health,
    ReportProgress,
    RunRef,
    RunSnapshot,
    Started,
    WorkflowRef,
    health_of,
    ignore_progress,
)
from workflow_catalogue_rq.config import RqConfig
from workflow_catalogue_rq.snapshots import ENDED, read_snapshot

Answer = TypeVar("Answer")


class RqConnector:
    """Functions that the workers of an RQ queue (Redis Queue) run."""

    kind: ClassVar[str] = "rq"
    label: ClassVar[str] = "RQ (Redis Queue)"
    Config: ClassVar[type[BaseModel]] = RqConfig
    capabilities = Capabilities(
        idempotent_start=True, can_cancel=True, can_find_runs=True, min_poll_seconds=0.5
    )

    def __init__(self, config: RqConfig) -> None:
        self._config = config
        self._redis = Redis(
            host=config.host,
            port=config.port,
            db=config.database,
            username=config.username or None,
            password=config.password.get_secret_value() or None,
            ssl=config.tls,
            socket_connect_timeout=config.request_timeout_seconds,
            socket_timeout=config.request_timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )
        # Never pickle: reading a result would run code from Redis.
        self._queue = Queue(config.queue, connection=self._redis, serializer=JSONSerializer)

    def __repr__(self) -> str:
        return f"RqConnector({self._config.host}:{self._config.port}, {self._config.queue})"

    async def check(self) -> Health:
        return await health_of(self._greet())

    async def _greet(self) -> str:
        workers = await self._ask(lambda: Worker.count(queue=self._queue))
        return f"Redis answered; workers that listen to the queue {self._queue.name}: {workers}."

    async def discover(self) -> AsyncIterator[WorkflowDefinition | RejectedDefinition]:
        await self._ask(self._redis.ping)
        for path, description in self._config.functions.items():
            yield WorkflowDefinition(
                id=path,
                name=path.rpartition(".")[2],
                description=description,
                input_schema={"type": "object"},
                timeout_seconds=self._config.timeout_seconds,
            )

    async def start(
        self,
        workflow: WorkflowRef,
        arguments: dict[str, Any],
        *,
        key: UUID,
        report: ReportProgress = ignore_progress,
    ) -> Started:
        if workflow.id not in self._config.functions:
            raise NotFound(f"The settings name no function {workflow.id}.")
        # What fails before this has an answer was never sent.
        await self._ask(self._redis.ping)
        await asyncio.to_thread(self._enqueue, workflow, arguments, str(key))
        return Started(run_id=str(key))

    def _enqueue(self, workflow: WorkflowRef, arguments: dict[str, Any], key: str) -> None:
        with self._errors(unanswered=OutcomeUnknown, unreadable=OutcomeUnknown):
            try:
                self._queue.enqueue_call(
                    workflow.id,
                    kwargs=arguments,
                    job_id=key,
                    unique=True,
                    timeout=self._config.timeout_seconds,
                    result_ttl=self._config.kept_seconds,
                    failure_ttl=self._config.kept_seconds,
                )
            except DuplicateJobError:
                return

    async def poll(self, run: RunRef) -> RunSnapshot:
        return await self._ask(lambda: read_snapshot(self._job(run.run_id)))

    async def find_run(
        self, workflow: WorkflowRef, arguments: dict[str, Any], *, key: UUID
    ) -> Started | None:
        try:
            function = await self._ask(lambda: self._job(str(key)).func_name)
        except NotFound:
            return None
        return Started(run_id=str(key)) if function == workflow.id else None

    async def cancel(self, run: RunRef) -> None:
        await self._ask(lambda: self._cancel(run.run_id))

    def _cancel(self, run_id: str) -> None:
        job = self._job(run_id)
        status = job.get_status(refresh=False)
        if status in ENDED:
            raise Rejected("The run has already ended.")
        try:
            send_stop_job_command(self._redis, run_id, serializer=JSONSerializer)
        except InvalidJobOperation:
            # It still waits in the queue.
            job.cancel()

    async def aclose(self) -> None:
        await asyncio.to_thread(self._redis.close)

    def _job(self, run_id: str) -> Job:
        return Job.fetch(run_id, connection=self._redis, serializer=JSONSerializer)

    async def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Ask Redis, in a thread, something that changes nothing or may be repeated."""

        def ask() -> Answer:
            with self._errors(unanswered=Unreachable, unreadable=InvalidAnswer):
                return question()

        return await asyncio.to_thread(ask)

    @contextmanager
    def _errors(
        self, *, unanswered: type[ConnectorError], unreadable: type[ConnectorError]
    ) -> Iterator[None]:
        """Raise Redis's errors as the protocol's; they quote no password."""
        try:
            yield
        except NoSuchJobError:
            raise NotFound("Redis has no such job (any more).") from None
        except AuthenticationError as error:
            raise Rejected(f"Redis rejected the credentials: {error}") from None
        except InvalidResponse as error:
            raise unreadable(f"Redis answered with something else than Redis does: {error}") from None
        except (ConnectionError, TimeoutError) as error:
            raise unanswered(f"Redis at {self._config.host}:{self._config.port}: {error}") from None
        except RedisError as error:
            raise Rejected(f"Redis refused: {error}") from None
        except (ValueError, DeserializationError):
            raise InvalidAnswer("The job is not JSON; do workers run with --serializer json?") from None
