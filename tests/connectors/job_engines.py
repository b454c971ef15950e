"""Engines with a job API, as far as their published APIs go: what the shipped declarations are held to.

Each answers what its engine answers, also to wrong logins, unknown ids and bodies that it would refuse.
"""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import HTTP
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit
from uuid import NAMESPACE_OID, uuid4, uuid5

from tests.connectors.lathe import QuietHandler, served

SECONDS = {"complete": 0.02, "fail": 0.02, "last": 600.0}
ASKING = "ask"
"""A job of the engines that ask people."""
REASON = "The tea went cold."
Answer = tuple[int, Any]


class Text(str):
    """An answer that is not JSON."""


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    """The JSON, or the fields of the form; None: no body."""


@dataclass
class Moved:
    """An answer without a body, whose header Location says where to go on."""

    to: str


@dataclass
class Busy:
    """An answer that says in its header Retry-After when to ask again."""

    seconds: int


@dataclass
class Run:
    job: str
    id: str
    key: str = ""
    arguments: Any = None
    began: float = field(default_factory=time.time)
    stopped: float = 0.0
    note: str | None = None
    answer: Any = None
    """Of a run of ASKING, which ends with it."""
    attempt: int = 1
    is_held: bool = False

    def go_on(self) -> None:
        """From the step that failed, which fails again."""
        self.began, self.attempt = time.time(), self.attempt + 1

    @property
    def ended(self) -> float:
        """Zero while it runs."""
        if self.job == ASKING:
            return self.stopped or (time.time() if self.answer else 0.0)
        due = self.began + SECONDS[self.job]
        return self.stopped or (due if time.time() >= due else 0.0)


class JobEngine:
    """The runs of one engine, and every request that it got."""

    secret = "engine-secret-0123456789abcdef"

    def __init__(self) -> None:
        self.port = 0
        self.runs: dict[str, Run] = {}
        self.asked: list[Asked] = []
        self.lock = threading.Lock()

    def answer(self, asked: Asked) -> Answer:
        raise NotImplementedError

    def add(self, run: Run) -> Run:
        self.runs[run.id] = run
        return run


def _body_of(content: bytes, content_type: str) -> Any:
    if content_type.startswith("multipart/form-data"):
        message = b"content-type: " + content_type.encode() + b"\r\n\r\n" + content
        parts: Any = message_from_bytes(message, policy=HTTP).get_payload()
        return {part.get_param("name", header="content-disposition"): part.get_content() for part in parts}
    if content_type == "application/x-www-form-urlencoded":
        return {name: values[-1] for name, values in parse_qs(content.decode()).items()}
    return json.loads(content) if content else None


@contextmanager
def serving(engine: JobEngine) -> Iterator[JobEngine]:
    class Handler(QuietHandler):
        def _reply(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = _body_of(content, headers.get("content-type", ""))
            asked = Asked(self.command, url.path, query, headers, body)
            with engine.lock:
                engine.asked.append(asked)
                code, told = engine.answer(asked)
            headers = {}
            if isinstance(told, Moved):
                headers["location"], told = told.to, None
            if isinstance(told, Busy):
                headers["retry_after"] = str(told.seconds)
                told = {"message": "API rate limit exceeded."}
            is_text = isinstance(told, Text)
            content = b"" if told is None else told.encode() if is_text else json.dumps(told).encode()
            content_type = "text/plain" if is_text else "application/json"
            self.send(code, content, content_type=content_type, **headers)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _reply  # noqa: N815

    with served(Handler) as engine.port:
        yield engine


def moment(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


class Airflow(JobEngine):
    """Airflow 3.3 (/api/v2 of its OpenAPI document) with its SimpleAuthManager."""

    page_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.tokens: set[str] = set()

    def answer(self, asked: Asked) -> Answer:
        if (asked.method, asked.path) == ("POST", "/auth/token"):
            return self._log_in(asked.body)
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer":
            return 401, {"detail": "Not authenticated"}
        if token not in self.tokens:
            return 403, {"detail": "Forbidden"}
        match asked.method, asked.path.removeprefix("/api/v2").strip("/").split("/"):
            case "GET", ["dags"]:
                return self._list(**asked.query)
            case "GET", ["dags", dag, "details"] if dag in SECONDS:
                return 200, self._dag(dag) | {"doc_md": f"Lets it {dag}.", "params": PARAMS.get(dag, {})}
            case "POST", ["dags", dag, "dagRuns"] if dag in (*SECONDS, ASKING):
                return self._start(dag, asked.body)
            case method, ["dags", dag, "dagRuns", run_id, *rest] if self._has(dag, run_id):
                return self._of_run(method, self.runs[run_id], rest, asked)
        return 404, {"detail": f"{asked.path} was not found"}

    def _has(self, dag: str, run_id: str) -> bool:
        return run_id in self.runs and self.runs[run_id].job == dag

    def _log_in(self, body: Any) -> Answer:
        if body != {"username": "admin", "password": self.secret}:
            return 401, {"detail": "Invalid credentials"}
        token = f"token-of-airflow-{uuid4().hex}"
        self.tokens.add(token)
        return 201, {"access_token": token}

    def _list(self, *, limit: str = "50", offset: str = "0", paused: str = "", order_by: str = "") -> Answer:
        begin, size = int(offset), min(int(limit), self.page_size)
        page = sorted(SECONDS)[begin : begin + size]
        return 200, {"dags": [self._dag(dag) for dag in page], "total_entries": len(SECONDS)}

    def _dag(self, dag: str) -> dict[str, Any]:
        return {"dag_id": dag, "dag_display_name": dag, "description": None, "tags": [{"name": "tea"}]}

    def _start(self, dag: str, body: Any) -> Answer:
        known = {"dag_run_id", "logical_date", "conf", "note", "run_after", "data_interval_start"}
        if not isinstance(body, dict) or "logical_date" not in body or body.keys() - known:
            return 422, {"detail": [{"loc": ["body", "logical_date"], "msg": "Field required"}]}
        run_id = body.get("dag_run_id") or f"manual__{uuid4()}"
        if run_id in self.runs:
            return 409, {"detail": {"reason": "Unique constraint violation", "message": "It exists."}}
        if dag == "complete" and not isinstance(body["conf"].get("cups"), int):
            return 400, {"detail": "Invalid input for param cups: 'many' is not of type 'integer'"}
        run = Run(dag, run_id, key=run_id, arguments=body["conf"], note=body.get("note"))
        return 200, self._told(self.add(run))

    def _state(self, run: Run) -> str:
        if run.stopped:
            return "failed"
        return "running" if not run.ended else "failed" if run.job == "fail" else "success"

    def _told(self, run: Run) -> dict[str, Any]:
        times = {
            "queued_at": moment(run.began),
            "start_date": moment(run.began),
            "end_date": moment(run.ended),
        }
        named = {"dag_run_id": run.id, "dag_id": run.job, "state": self._state(run), "note": run.note}
        return named | times | {"conf": run.arguments, "logical_date": None}

    def _of_run(self, method: str, run: Run, rest: list[str], asked: Asked) -> Answer:
        done = {"task_id": "brew", "map_index": -1, "timestamp": moment(run.ended), "key": "return_value"}
        earlier = done | {"task_id": "boil", "timestamp": moment(run.began)}
        match method, rest:
            case "GET", []:
                return 200, self._told(run)
            case "PATCH", [] if set(asked.body) <= {"state", "note"}:
                run.note = asked.body.get("note", run.note)
                run.stopped = run.stopped or time.time()
                return 200, self._told(run)
            case "POST", ["clear"]:
                return self._clear(run, **asked.body)
            case _, [*place, "hitlDetails"]:
                return self._of_question(method, run, place, asked)
            case "GET", ["taskInstances", *_, "xcomEntries"] | ["taskInstances", *_, "return_value"]:
                value = {"value": run.answer or {"cups": run.arguments["cups"]}}
                listed = {"xcom_entries": [earlier, done], "total_entries": 2}
                return 200, listed if rest[1] == "~" else done | value
            case "GET", ["taskInstances"]:
                tasks = self._tasks(run, wanted=asked.query.get("state", ""))
                return 200, {"task_instances": tasks, "total_entries": len(tasks)}
            case "GET", ["taskInstances", "brew", "logs", "1"]:
                error = {"exc_type": "ValueError", "exc_value": REASON, "frames": []}
                line = {"timestamp": moment(run.ended), "event": "Task failed", "error_detail": [error]}
                begun = {"timestamp": moment(run.began), "event": "Task started"}
                return 200, {"content": [begun, line], "continuation_token": None}
        return 404, {"detail": "The run has nothing like that."}

    def _clear(self, run: Run, *, note: str, only_failed: bool = False, dry_run: bool = True) -> Answer:
        """It takes a note for a run that has not failed, too, of which nothing runs again."""
        if dry_run:
            return 200, {"task_instances": [], "total_entries": 0}
        run.note = note
        if only_failed and self._state(run) == "failed":
            run.go_on()
        return 200, self._told(run)

    def _tasks(self, run: Run, *, wanted: str) -> list[dict[str, Any]]:
        state = self._state(run)
        is_asking = run.job == ASKING and state == "running"
        states = {"boil": "success", "brew": "awaiting_input" if is_asking else state}
        usual = {"try_number": 1, "map_index": -1}
        return [
            usual | {"task_id": task, "task_display_name": task, "state": state}
            for task, state in states.items()
            if wanted in ("", state)
        ]

    def _detail(self, run: Run) -> dict[str, Any]:
        param = {"value": 2, "schema": {"type": "integer"}, "description": "How many."}
        return {
            "task_instance": {
                "id": str(uuid5(NAMESPACE_OID, run.id)),
                "task_id": "taste",
                "map_index": 2,
                "state": "awaiting_input",
            },
            "subject": "Is it good?",
            "body": "Taste\u202e it.",
            "options": ["Yes", "No"],
            "multiple": True,
            "params": {"cups": param},
            "response_received": bool(run.answer),
        }

    def _of_question(self, method: str, run: Run, place: list[str], asked: Asked) -> Answer:
        body = asked.body
        if (method, place, asked.query.get("response_received")) == ("GET", [], "false"):
            details = [self._detail(run), self._detail(run) | {"task_instance": {"state": "failed"}}]
            return 200, {"hitl_details": [] if run.ended else details, "total_entries": 2}
        if (method, place) != ("PATCH", ["taskInstances", "taste", "2"]):
            return 404, {"detail": "Human-in-the-loop detail does not exist"}
        if run.ended:
            return 409, {"detail": "Human-in-the-loop detail has already been updated."}
        if unknown := [one for one in body["chosen_options"] if one not in ("Yes", "No")]:
            return 400, {"detail": f"Invalid options {unknown}; allowed options are ['No', 'Yes']."}
        if body["chosen_options"] == ["No"]:
            return 403, {"detail": "User=admin (id=admin) is not a respondent for the task."}
        run.answer = body
        return 200, body


PARAMS = {
    "complete": {
        "cups": {"value": 2, "schema": {"type": "integer", "minimum": 1}, "description": "How many."},
        "sort": {"value": None, "schema": {"type": "string"}, "description": "Which tea."},
        "milk": {"value": None, "schema": {"type": ["null", "string"]}, "description": None},
    }
}


class GitHub(JobEngine):
    """GitHub Actions of octo/tea, by the REST API of 2022-11-28 with the run details of February 2026."""

    ids = {"complete": 101, "fail": 102, "last": 103, ASKING: 105}

    def __init__(self) -> None:
        super().__init__()
        self.outdated: dict[str, dict[str, Any]] = {}
        """What the next status of a run says, which does not know of a retry yet."""

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {self.secret}":
            return 401, {"message": "Bad credentials", "status": "401"}
        match asked.method, asked.path.removeprefix("/repos/octo/tea/").split("/"):
            case "GET", ["actions", "workflows"]:
                return self._list(**asked.query)
            case "POST", ["actions", "workflows", number, "dispatches"] if self._job(number):
                return self._start(self._job(number), asked.body)
            case method, ["actions", "runs", run_id, *rest] if run_id in self.runs:
                return self._of_run(method, self.runs[run_id], rest, asked.body)
        return 404, {"message": "Not Found", "status": "404"}

    def _job(self, number: str) -> str:
        return next((job for job, known in self.ids.items() if str(known) == number), "")

    def _list(self, *, per_page: str, page: str) -> Answer:
        begin, size = (int(page) - 1) * int(per_page), int(per_page)
        workflows = [
            {"id": number, "name": job, "path": f".github/workflows/{job}.yml", "state": "active"}
            for job, number in self.ids.items()
        ]
        off = {"id": 104, "name": "off", "path": ".github/workflows/off.yml", "state": "disabled_manually"}
        every = [*workflows, off]
        return 200, {"total_count": len(every), "workflows": every[begin : begin + size]}

    def _start(self, job: str, body: Any) -> Answer:
        if body.get("ref") != "main":
            return 422, {"message": f"No ref found for: {body.get('ref')}"}
        if body["inputs"].keys() - {"cups"}:
            return 422, {"message": "Unexpected inputs provided"}
        run = self.add(Run(job, str(9_000_000_001 + len(self.runs)), arguments=body["inputs"]))
        if not body.get("return_run_details"):
            return 204, None
        url = f"https://api.github.com/repos/octo/tea/actions/runs/{run.id}"
        return 200, {"workflow_run_id": int(run.id), "run_url": url, "html_url": url}

    def _told(self, run: Run) -> dict[str, Any]:
        conclusion = "cancelled" if run.stopped else "failure" if run.job == "fail" else "success"
        return {
            "id": int(run.id),
            "status": "completed" if run.ended else "waiting" if run.job == ASKING else "in_progress",
            "conclusion": conclusion if run.ended else None,
            "html_url": f"https://github.com/octo/tea/actions/runs/{run.id}",
            "run_attempt": run.attempt,
            "head_sha": "acb5820ced9479c074f688cc328bf03f341a511d",
            "created_at": moment(run.began),
            "run_started_at": moment(run.began),
            "updated_at": moment(run.ended or run.began),
        }

    def _of_run(self, method: str, run: Run, rest: list[str], body: Any) -> Answer:
        match method, rest:
            case "GET", []:
                return 200, self.outdated.pop(run.id, None) or self._told(run)
            case "POST", ["rerun-failed-jobs"] if not run.ended:
                return 403, {"message": "This workflow run is already running"}
            case "POST", ["rerun-failed-jobs"]:
                self.outdated[run.id] = self._told(run)
                run.go_on()
                return 201, {}
            case _, ["pending_deployments"]:
                return self._of_deployments(method, run, body)
            case "GET", ["jobs"]:
                conclusion = "failure" if run.job == "fail" else "success"
                step = {"name": REASON, "conclusion": conclusion, "status": "completed"}
                job = {"name": "brew", "conclusion": conclusion, "status": "completed", "steps": [step]}
                return 200, {"total_count": 1, "jobs": [job]}
            case "POST", ["cancel" | "force-cancel"] if run.ended:
                return 409, {"message": "Cannot cancel a workflow run that is completed."}
            case "POST", ["cancel" | "force-cancel"]:
                run.stopped = time.time()
                return 202, {}
        return 404, {"message": "Not Found", "status": "404"}

    def _of_deployments(self, method: str, run: Run, body: Any) -> Answer:
        environment = {"id": 161088068, "name": "staging", "html_url": "https://github.com/octo/tea/staging"}
        other = {"environment": environment | {"id": 7}, "current_user_can_approve": False}
        pending = [other, {"environment": environment, "current_user_can_approve": True}]
        if method == "GET":
            return 200, [] if run.ended else pending
        if run.ended or body["environment_ids"] != [161088068]:
            return 422, {"message": "No pending deployment requests to approve or reject"}
        if not body["comment"]:
            return 400, {"message": "Comment can't be blank"}
        run.answer = body
        return 200, [{"id": 1, "environment": "staging"}]


class N8n(JobEngine):
    """n8n 2.x: the public API, and webhooks with header authentication by the same key."""

    ids = {"complete": "aB3dE6gH9jK2mN5p", "fail": "bC4eF7hJ0kL3nP6q", "last": "cD5fG8iK1lM4oQ7r"}
    resume_token = "resume-0123456789abcdef"
    waits: dict[str, Any] = {
        "resume": "form",
        "formTitle": "Tea",
        "formDescription": "Is it good?",
        "formFields": {
            "values": [
                {"fieldLabel": "Good", "fieldType": "dropdown", "requiredField": True,
                 "fieldOptions": {"values": [{"option": "yes"}, {"option": "no"}]}},
                {"fieldLabel": "Cups", "fieldType": "number", "requiredField": False},
                {"fieldLabel": "Sorts", "fieldType": "checkbox",
                 "fieldOptions": {"values": [{"option": "Assam"}, {"option": "Mint"}]}},
            ]
        },
    }  # fmt: skip
    """The parameters of the node in which a run of ASKING waits."""

    def answer(self, asked: Asked) -> Answer:
        is_webhook = asked.path.startswith("/webhook/")
        if "-waiting/" in asked.path:
            return self._resume(asked)
        if asked.headers.get("x-n8n-api-key") != self.secret:
            return (403, "Authorization data is wrong!") if is_webhook else (401, {"message": "unauthorized"})
        match asked.method, asked.path.strip("/").split("/"):
            case "POST", ["webhook", job] if job in (*SECONDS, ASKING):
                run = self.add(Run(job, str(len(self.runs) + 1), arguments=asked.body))
                return 200, {"executionId": run.id}
            case _, ["webhook", job]:
                return 404, {"code": 404, "message": f'The requested webhook "{job}" is not registered.'}
            case "GET", ["api", "v1", "workflows"]:
                return self._list(**asked.query)
            case "GET", ["api", "v1", "executions", run_id] if run_id in self.runs:
                return 200, self._told(self.runs[run_id])
            case "POST", ["api", "v1", "executions", run_id, verb] if run := self.runs.get(run_id):
                return self._retry(run, asked.body) if verb == "retry" else self._stop(run)
        return 404, {"message": "Not Found"}

    def _retry(self, run: Run, body: Any) -> Answer:
        """It answers when the new execution has ended."""
        if self._told(run)["status"] != "error" or body != {"loadWorkflow": False}:
            return 409, {"message": "The execution succeeded, so it cannot be retried."}
        retried = self.add(Run(run.job, str(len(self.runs) + 1), arguments=run.arguments))
        time.sleep(max(0.0, retried.began + SECONDS[run.job] - time.time()))
        return 200, self._told(retried) | {"mode": "retry", "retryOf": run.id}

    def _list(self, *, active: str, limit: str, cursor: str = "") -> Answer:
        jobs = list(self.ids)
        begin = jobs.index(cursor) if cursor else 0
        following = jobs[begin + 2] if begin + 2 < len(jobs) else None
        return 200, {
            "data": [self._workflow(job) for job in jobs[begin : begin + 2]],
            "nextCursor": following,
        }

    def _workflow(self, job: str) -> dict[str, Any]:
        trigger = {"httpMethod": "POST", "path": job, "authentication": "headerAuth"}
        webhook = {"type": "n8n-nodes-base.webhook", "name": "Webhook", "parameters": trigger}
        nodes = [webhook, {"type": "n8n-nodes-base.set", "name": "Brew", "parameters": {}}]
        return {"id": self.ids[job], "name": job, "active": True, "nodes": nodes, "tags": [{"name": "tea"}]}

    def _told(self, run: Run) -> dict[str, Any]:
        status = "canceled" if run.stopped else "running" if not run.ended else "success"
        status = "error" if run.job == "fail" and run.ended else status
        if run.job == ASKING and status == "running":
            return self._waiting(run)
        times = {"startedAt": moment(run.began), "stoppedAt": moment(run.ended)}
        ran = {"Webhook": [_ran(run.arguments)], "Brew": [_ran({"brewed": run.arguments})]}
        result: dict[str, Any] = {"runData": ran if run.ended else {}, "lastNodeExecuted": "Brew"}
        result |= {"error": {"message": REASON, "name": "NodeOperationError"}} if status == "error" else {}
        return {"id": run.id, "status": status, "data": {"resultData": result}} | times

    def _waiting(self, run: Run) -> dict[str, Any]:
        node = {"id": "brew", "name": "Brew", "type": "n8n-nodes-base.wait", "parameters": self.waits}
        waits = {"startTime": int(run.began * 1000), "executionStatus": "waiting", **_ran(run.arguments)}
        return {
            "id": run.id,
            "status": "waiting",
            "waitTill": "3000-01-01T00:00:00.000Z",
            "data": {
                "resumeToken": self.resume_token,
                "executionData": {"nodeExecutionStack": [{"node": node}]},
                "resultData": {"runData": {"Webhook": [_ran(run.arguments)], "Brew": [waits]}},
            },
        }

    def _resume(self, asked: Asked) -> Answer:
        """As n8n 2.x: a signature in the query; a form is multipart/form-data."""
        sort, run = asked.path.split("/")[1], self.runs.get(asked.path.split("/")[2])
        if run is None:
            return 404, {"message": "The execution does not exist."}
        if asked.query.get("signature") != self.resume_token:
            return 401, {"error": "Invalid token"}
        if run.ended:
            return 409, {"message": f"The execution {run.id} has finished already."}
        if sort != f"{self.waits['resume']}-waiting":
            return 404, {"message": "There is no such waiting webhook."}
        run.answer = asked.body
        return 200, {"status": 200}

    def _stop(self, run: Run) -> Answer:
        if run.ended:
            return 409, {"message": f"Only running executions can be stopped, and {run.id} is not."}
        run.stopped = time.time()
        return 200, {"id": run.id, "status": "canceled"}


def _ran(item: Any) -> dict[str, Any]:
    return {"executionTime": 1, "data": {"main": [[{"json": item}]]}}


@cache
def _schema_of_dagster() -> Any:
    import graphql

    return graphql.build_schema(Path(__file__).with_name("dagster.graphql").read_text(encoding="utf-8"))


class Dagster(JobEngine):
    """The GraphQL API of Dagster 1.13's webserver: its own schema decides what can be asked. The token is
    that of Dagster+."""

    def __init__(self) -> None:
        super().__init__()
        self.starting: set[str] = set()
        """Runs whose process is not there yet."""

    def answer(self, asked: Asked) -> Answer:
        # By the tests that need it: it would take each worker that collects them 0.1 s.
        import graphql

        schema = _schema_of_dagster()
        if asked.headers.get("dagster-cloud-api-token") != self.secret:
            return 401, {"message": "Unauthorized"}
        if (asked.method, asked.path) != ("POST", "/graphql"):
            return 404, {"message": "Not Found"}
        document = graphql.parse(asked.body["query"])
        if errors := graphql.validate(schema, document):
            return 400, {"data": None, "errors": [{"message": error.message} for error in errors]}
        done = graphql.execute_sync(
            schema,
            document,
            root_value=self._root(),
            variable_values=asked.body.get("variables"),
        )
        told: dict[str, Any] = {"data": done.data}
        return 200, told | (
            {"errors": [{"message": error.message} for error in done.errors]} if done.errors else {}
        )

    def _root(self) -> dict[str, Any]:
        return {
            "version": "1.13.27",
            "repositoriesOrError": {"__typename": "RepositoryConnection", "nodes": [REPOSITORY]},
            "runOrError": lambda _, runId: self._told(runId),  # noqa: N803
            "runsOrError": lambda _, filter, limit: self._runs(filter),
            "logsForRun": lambda _, runId, limit: self._events(runId),  # noqa: N803
            "launchRun": lambda _, executionParams: self._launch(executionParams),  # noqa: N803
            "launchRunReexecution": lambda _, reexecutionParams: self._retry(reexecutionParams),  # noqa: N803
            "terminateRun": lambda _, **asked: self._stop(**asked),
        }

    def _launch(self, params: dict[str, Any]) -> dict[str, Any]:
        chosen, config = params["selector"], params["runConfigData"]
        job = chosen["jobName"]
        where = (chosen["repositoryLocationName"], chosen["repositoryName"])
        if where != ("tea", "__repository__") or job not in SECONDS:
            missing = {"pipelineName": job, "repositoryName": where[1], "repositoryLocationName": where[0]}
            return {"__typename": "PipelineNotFoundError", "message": f"Could not find {job}."} | missing
        if config.keys() - {"ops"}:
            error = {
                "__typename": "FieldNotDefinedConfigError",
                "message": "Received unexpected config entry.",
            }
            return {"__typename": "RunConfigValidationInvalid", "pipelineName": job, "errors": [error]}
        tags = {tag["key"]: tag["value"] for tag in params["executionMetadata"]["tags"]}
        run = self.add(Run(job, str(uuid4()), key=tags["workflow-catalogue/key"], arguments=config))
        return {"__typename": "LaunchRunSuccess", "run": self._told(run.id)}

    def _retry(self, params: dict[str, Any]) -> dict[str, Any]:
        parent = self._told(params["parentRunId"])
        if parent.get("status") != "FAILURE" or params["strategy"] != "FROM_FAILURE":
            return {"__typename": "PythonError", "message": "CheckError: the parent run has not failed"}
        tags = {tag["key"]: tag["value"] for tag in params["extraTags"]}
        run = self.add(Run(parent["jobName"], str(uuid4()), key=tags["workflow-catalogue/key"]))
        return {"__typename": "LaunchRunSuccess", "run": self._told(run.id)}

    def _told(self, run_id: str) -> dict[str, Any]:
        if (run := self.runs.get(run_id)) is None:
            return {"__typename": "RunNotFoundError", "runId": run_id, "message": "Not found."}
        status = "CANCELED" if run.stopped else "STARTED" if not run.ended else "SUCCESS"
        status = "FAILURE" if run.job == "fail" and run.ended else status
        if run.id in self.starting and not run.ended:
            status = "STARTING"
        times = {"creationTime": run.began, "startTime": run.began, "endTime": run.ended or None}
        tags = [{"key": "workflow-catalogue/key", "value": run.key}]
        of_brew = {"SUCCESS": "SUCCESS", "FAILURE": "FAILURE", "STARTED": "IN_PROGRESS"}.get(status)
        steps = [{"stepKey": "boil", "status": "SUCCESS"}, {"stepKey": "brew", "status": of_brew}]
        return {
            "__typename": "Run",
            "runId": run.id,
            "jobName": run.job,
            "status": status,
            "tags": tags,
            "stepStats": steps,
            "executionPlan": {"steps": [{"key": step["stepKey"]} for step in steps]},
        } | times

    def _runs(self, wanted: dict[str, Any]) -> dict[str, Any]:
        keys = [tag["value"] for tag in wanted["tags"]]
        found = [run for run in self.runs.values() if run.key in keys and run.job == wanted["pipelineName"]]
        return {"__typename": "Runs", "results": [self._told(run.id) for run in found], "count": len(found)}

    def _events(self, run_id: str) -> dict[str, Any]:
        run = self.runs[run_id]
        usual = {
            "runId": run_id,
            "timestamp": str(int(run.began * 1000)),
            "level": "DEBUG",
            "stepKey": "brew",
        }
        kind = "ExecutionStepFailureEvent" if run.job == "fail" else "ExecutionStepSuccessEvent"
        cause = {"message": f"ValueError: {REASON}", "causes": []}
        whole = {"message": "Error occurred while executing op.", "causes": [cause]}
        error = {"error": whole} if run.job == "fail" else {}
        made = {"__typename": "MaterializationEvent", "message": "Materialized value tea."} | usual
        text = {"__typename": "TextMetadataEntry", "label": "sort", "text": "Assam"}
        made |= {"assetKey": {"path": ["kitchen", "tea"]}, "metadataEntries": [text]}
        ended = {"__typename": kind, "message": "The step ended."} | usual | error
        return {"__typename": "EventConnection", "events": [made, ended], "cursor": "2", "hasMore": False}

    def _stop(self, runId: str, terminatePolicy: str = "SAFE_TERMINATE") -> dict[str, Any]:  # noqa: N803
        run_id, is_forced = runId, terminatePolicy == "MARK_AS_CANCELED_IMMEDIATELY"
        if (run := self.runs.get(run_id)) is None:
            return {"__typename": "RunNotFoundError", "runId": run_id, "message": "Not found."}
        if run_id in self.starting and is_forced:
            # It is marked, and its process, which nobody could tell, starts all the same.
            self.starting.remove(run_id)
            return {"__typename": "TerminateRunSuccess", "run": self._told(run_id)}
        if run.ended or run_id in self.starting:
            failure = {"__typename": "TerminateRunFailure", "run": self._told(run_id)}
            return failure | {"message": f"Run {run_id} is not in a started state."}
        run.stopped = time.time()
        return {"__typename": "TerminateRunSuccess", "run": self._told(run_id)}


PLACE = {"name": "__repository__", "location": {"name": "tea"}}
REPOSITORY = PLACE | {
    "jobs": [
        {"name": name, "description": None, "tags": [], "repository": PLACE}
        for name in (*SECONDS, "__ASSET_JOB")
    ]
}


class Conductor(JobEngine):
    """Conductor 3, by its controllers and JSON Schemas, with the login and the idempotency of Orkes; the
    open-source server has neither."""

    key = {"keyId": "admin", "keySecret": JobEngine.secret}

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__()
        self.is_open = is_open
        self.tokens: set[str] = set()

    def answer(self, asked: Asked) -> Answer:
        if (asked.method, asked.path) == ("POST", "/api/token") and not self.is_open:
            return self._log_in(asked.body)
        if not self.is_open and asked.headers.get("x-authorization") not in self.tokens:
            return 401, {"status": 401, "error": "INVALID_TOKEN", "message": "The token is not valid."}
        match asked.method, asked.path.removeprefix("/api/").split("/"):
            case "GET", ["metadata", "workflow"]:
                return 200, [self._definition(name, version) for name in SECONDS for version in (1, 2)]
            case "POST", ["workflow"]:
                return self._start(asked)
            case "GET", ["workflow", name, "correlated", key]:
                of_it = [run for run in self.runs.values() if (run.job, run.key) == (name, key)]
                return 200, [self._told(run) for run in of_it]
            case "POST", ["tasks"] if asked.body["workflowInstanceId"] in self.runs:
                return self._update(asked.body)
            case method, ["workflow", run_id, *verb] if run_id in self.runs:
                return self._of_run(method, self.runs[run_id], verb, asked.query)
        return 404, {"status": 404, "message": "Not found", "instance": "tests", "retryable": False}

    def _log_in(self, body: Any) -> Answer:
        if body != self.key:
            return 401, {"status": 401, "error": "INVALID_KEY", "message": "The access key is not valid."}
        token = f"token-of-orkes-{uuid4().hex}"
        self.tokens.add(token)
        return 200, {"token": token}

    def _definition(self, name: str, version: int) -> dict[str, Any]:
        task = {"name": "brew", "taskReferenceName": "brew_ref", "type": "SIMPLE"}
        schema = {"type": "object", "properties": {"cups": {"type": "integer"}}, "required": ["cups"]}
        described = {"name": name, "version": 1, "type": "JSON", "data": schema}
        return {
            "name": name,
            "version": version,
            "description": f"Lets it {name}." if version == 2 else "The old one.",
            "tasks": [task],
            "inputParameters": ["cups"],
            "inputTemplate": {"sort": "Assam"},
            "outputParameters": {},
            "schemaVersion": 2,
            "timeoutPolicy": "ALERT_ONLY",
            "timeoutSeconds": 0,
            "createTime": 1_700_000_000_000,
        } | ({"inputSchema": described} if name == "complete" else {})

    def _start(self, asked: Asked) -> Answer:
        if "text/plain" not in asked.headers.get("accept", ""):
            return 406, {"status": 406, "message": "No acceptable representation"}
        body = asked.body
        if body["name"] not in (*SECONDS, ASKING) or body["version"] not in (1, 2, None):
            missing = f"No such workflow found by name: {body['name']}, version: {body['version']}"
            return 404, {"status": 404, "message": missing}
        again = [run.id for run in self.runs.values() if run.key == body["idempotencyKey"]]
        if again and not self.is_open:
            return 200, Text(again[0])
        run = Run(body["name"], str(uuid4()), key=body["correlationId"], arguments=body["input"])
        return 200, Text(self.add(run).id)

    def _control(self, command: str, run: Run) -> Answer:
        status = self._told(run)["status"]
        wanted = {"POST retry": "FAILED", "PUT pause": "RUNNING", "PUT resume": "PAUSED"}[command]
        if status != wanted:
            return 409, {"status": 409, "message": f"The workflow {run.id} is {status}, not {wanted}."}
        run.is_held = command == "PUT pause"
        if command == "POST retry":
            run.go_on()
        return 200, None

    def _update(self, body: Any) -> Answer:
        """It takes any output, and that of a task that has ended too, which it ignores."""
        run = self.runs[body["workflowInstanceId"]]
        if (body["taskId"], body["status"]) != (f"task-of-{run.id}", "COMPLETED"):
            return 404, {"status": 404, "message": f"No such task found by id: {body['taskId']}"}
        run.answer = run.answer or body
        return 200, Text(body["taskId"])

    def _told(self, run: Run) -> dict[str, Any]:
        status = "TERMINATED" if run.stopped else "RUNNING" if not run.ended else "COMPLETED"
        status = "FAILED" if run.job == "fail" and run.ended else status
        status = "PAUSED" if run.is_held and status == "RUNNING" else status
        of_task = {"TERMINATED": "CANCELED", "RUNNING": "IN_PROGRESS"}.get(status, status)
        task = {
            "taskType": "HUMAN" if run.job == ASKING else "SIMPLE",
            "inputData": {"message": "Is it good?", "schema": {"properties": {"good": {"type": "boolean"}}}},
            "status": of_task,
            "referenceTaskName": "brew_ref",
            "taskId": f"task-of-{run.id}",
            "workflowInstanceId": run.id,
        }
        told = {
            "workflowId": run.id,
            "workflowName": run.job,
            "workflowVersion": 2,
            "status": status,
            "correlationId": run.key,
            "input": run.arguments,
            "output": {"brewed": run.arguments} if status == "COMPLETED" else {},
            "tasks": [task],
            "workflowDefinition": self._definition(run.job, 2),
            "createTime": int(run.began * 1000),
            "startTime": int(run.began * 1000),
            "updateTime": int(run.began * 1000),
            "endTime": int(run.ended * 1000),
        }
        if status == "FAILED":
            told["reasonForIncompletion"] = f"Task brew failed with status: FAILED and reason: '{REASON}'"
        elif run.stopped:
            told["reasonForIncompletion"] = run.note
        return told

    def _of_run(self, method: str, run: Run, verb: list[str], query: dict[str, str]) -> Answer:
        if verb:
            return self._control(f"{method} {verb[0]}", run)
        if method == "GET":
            return 200, self._told(run)
        if run.ended and run.job == "complete":
            return 409, {"status": 409, "message": "Cannot terminate a COMPLETED workflow."}
        run.stopped, run.note = time.time(), query.get("reason")
        return 200, None


class Jenkins(JobEngine):
    """The remote API of Jenkins 2.5xx, behind a proxy, so that it knows itself by another address."""

    def __init__(self) -> None:
        super().__init__()
        login = base64.b64encode(f"tea:{self.secret}".encode()).decode()
        self.login = f"Basic {login}"

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != self.login:
            return 401, Text("<html>Invalid password/token for user: tea</html>")
        match asked.method, asked.path.strip("/").split("/"):
            case "GET", ["api", "json"]:
                return 200, {"_class": "hudson.model.Hudson", "jobs": [*map(self._job, SECONDS), FOLDER]}
            case "POST", ["job", job, verb] if job in (*SECONDS, ASKING):
                return self._start(job, verb, asked.body)
            case "GET", ["job", job, "api", "json"] if job in (*SECONDS, ASKING):
                return 200, {"builds": [self._told(run) for run in self._built() if run.job == job]}
            case "GET", ["queue", "item", number, "api", "json"] if number in self.runs:
                return 200, self._queued(self.runs[number])
            case "POST", ["queue", "cancelItem"] if asked.query["id"] in self.runs:
                self.runs[asked.query["id"]].stopped = time.time()
                return 204, None
            case method, ["job", job, number, *verb]:
                builds = [run for run in self._built() if run.job == job and self._number(run) == int(number)]
                return (
                    self._of_build(method, builds[0], "/".join(verb), asked.body)
                    if builds
                    else (404, Text("<html>Not Found</html>"))
                )
        return 404, Text("<html>Not Found</html>")

    def _job(self, job: str) -> dict[str, Any]:
        sorts = {"type": "ChoiceParameterDefinition", "name": "sort", "choices": ["Assam", "Darjeeling"]}
        default = {"defaultParameterValue": {"value": 2}, "description": "How many."}
        cups = default | {"type": "StringParameterDefinition", "name": "cups"}
        properties = [{}, {"parameterDefinitions": [cups, sorts]}] if job == "complete" else [{}]
        return {
            "name": job,
            "displayName": job,
            "description": None,
            "buildable": True,
            "property": properties,
        }

    def _start(self, job: str, verb: str, body: Any) -> Answer:
        if (verb == "buildWithParameters") != (job == "complete"):
            return 400, Text("<html>Nothing is submitted</html>")
        run = self.add(Run(job, str(40 + len(self.runs)), arguments=body))
        return 201, Moved(f"http://jenkins.internal:8080/queue/item/{run.id}/")

    def _is_built(self, run: Run) -> bool:
        """An item of the queue becomes a build after a moment, unless it was cancelled."""
        begins = run.began + self.queued_seconds
        return time.time() >= begins and not (run.stopped and run.stopped < begins)

    queued_seconds = 0.02

    def _built(self) -> list[Run]:
        return [run for run in self.runs.values() if self._is_built(run)]

    def _number(self, run: Run) -> int:
        return int(run.id) - 30

    def _told(self, run: Run) -> dict[str, Any]:
        result = "ABORTED" if run.stopped else "FAILURE" if run.job == "fail" else "SUCCESS"
        number = self._number(run)
        sort = "workflow.job.WorkflowRun" if run.job == ASKING else "FreeStyleBuild"
        return {
            "_class": f"org.jenkinsci.plugins.{sort}",
            "number": number,
            "queueId": int(run.id),
            "building": not run.ended,
            "result": result if run.ended else None,
            "timestamp": int(run.began * 1000),
            "duration": int((run.ended - run.began) * 1000) if run.ended else 0,
            "url": f"http://jenkins.internal:8080/job/{run.job}/{number}/",
            "displayName": f"#{number}",
        }

    def _queued(self, run: Run) -> dict[str, Any]:
        told: dict[str, Any] = {"id": int(run.id), "inQueueSince": int(run.began * 1000)}
        if self._is_built(run):
            return told | {"executable": {"number": self._number(run)}}
        return told | {"why": "In the quiet period", "cancelled": bool(run.stopped)}

    def _of_build(self, method: str, run: Run, verb: str, body: Any) -> Answer:
        match method, verb:
            case "GET", "wfapi/pendingInputActions" if run.job == ASKING:
                return 200, [] if run.ended else [PENDING]
            case "POST", "input/Good/proceed" if run.job == ASKING and not run.ended:
                run.answer = json.loads(body["json"])["parameter"]
                return 200, None
            case "GET", "consoleText":
                return 200, Text(f"Started by user tea\n{REASON}\nFinished: FAILURE\n")
            case "POST", "stop":
                run.stopped = run.stopped or time.time()
                return 302, Moved("http://jenkins.internal:8080/job/")
        return 404, Text("<html>Not Found</html>")


PENDING = {
    "id": "Good",
    "message": "Is it good?",
    "inputs": [
        {
            "type": "BooleanParameterDefinition",
            "name": "good",
            "definition": {"defaultVal": True},
        },
        {"type": "ChoiceParameterDefinition", "name": "sort", "definition": {"choices": ["Assam", "Mint"]}},
    ],
    "proceedUrl": "/job/ask/1/wfapi/inputSubmit?inputId=Good",
}
"""As the plugin Pipeline: REST API lists it."""
FOLDER = {"name": "team", "displayName": "team", "buildable": None, "property": []}


class Awx(JobEngine):
    """The REST API of AWX 24 (/api/v2)."""

    ids = {"complete": 7, "fail": 8, "last": 9}

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {self.secret}":
            return 401, {"detail": "Authentication credentials were not provided."}
        match asked.method, asked.path.removeprefix("/api/v2").strip("/").split("/"):
            case "GET", ["me"]:
                return 200, {"count": 1, "results": [{"username": "tea"}]}
            case "GET", ["job_templates"]:
                return self._list(**asked.query)
            case "GET", ["job_templates", number, "survey_spec"] if self._job(number):
                return 200, SURVEYS.get(self._job(number), {})
            case "POST", ["job_templates", number, "launch"] if self._job(number):
                return self._start(self._job(number), asked.body)
            case method, ["jobs", run_id, *rest] if run_id in self.runs:
                return self._of_run(method, self.runs[run_id], rest)
        return 404, {"detail": "Not found."}

    def _job(self, number: str) -> str:
        return next((job for job, known in self.ids.items() if str(known) == number), "")

    def _list(self, *, page_size: str, order_by: str, page: str = "1") -> Answer:
        begin = 2 * (int(page) - 1)
        labels = {"labels": {"count": 1, "results": [{"id": 1, "name": "tea"}]}}
        every = [
            {"id": number, "name": job, "description": "", "summary_fields": labels}
            for job, number in self.ids.items()
        ]
        following = f"/api/v2/job_templates/?order_by=id&page={int(page) + 1}&page_size={page_size}"
        following_or_none = following if begin + 2 < len(every) else None
        return 200, {"count": len(every), "next": following_or_none, "results": every[begin : begin + 2]}

    def _start(self, job: str, body: Any) -> Answer:
        if not isinstance(body.get("extra_vars"), dict):
            return 400, {"extra_vars": ["Expected a dictionary."]}
        run = self.add(Run(job, str(500 + len(self.runs)), arguments=body["extra_vars"]))
        return 201, {"job": int(run.id), "ignored_fields": {}} | self._told(run)

    def _told(self, run: Run) -> dict[str, Any]:
        ended = "canceled" if run.stopped else "failed" if run.job == "fail" else "successful"
        return {
            "id": int(run.id),
            "status": ended if run.ended else "running",
            "created": moment(run.began),
            "modified": moment(run.ended or run.began),
            "started": moment(run.began),
            "finished": moment(run.ended),
            "artifacts": {"brewed": run.arguments} if run.ended else {},
            "job_explanation": "",
            "result_traceback": "",
        }

    def _of_run(self, method: str, run: Run, rest: list[str]) -> Answer:
        match method, rest:
            case "GET", []:
                return 200, self._told(run)
            case "GET", ["job_events"]:
                event = {
                    "event": "runner_on_failed",
                    "stdout": "fatal",
                    "event_data": {"res": {"msg": REASON}},
                }
                return 200, {"count": 1, "results": [event]}
            case "GET", ["stdout"]:
                return 200, Text("PLAY [tea]\nok: [localhost]\n")
            case "POST", ["cancel"] if run.ended:
                return 405, {"detail": 'Method "POST" not allowed.'}
            case "POST", ["cancel"]:
                run.stopped = time.time()
                return 202, None
        return 404, {"detail": "Not found."}


SURVEYS = {
    "complete": {
        "name": "",
        "description": "",
        "spec": [
            {
                "variable": "cups",
                "type": "integer",
                "question_name": "Cups",
                "question_description": "How many.",
                "required": True,
                "default": 2,
                "choices": "",
            },
            {
                "variable": "sort",
                "type": "multiplechoice",
                "question_name": "Sort",
                "required": False,
                "default": "",
                "choices": ["Assam", "Darjeeling"],
            },
        ],
    }
}


class Buildbot(JobEngine):
    """The REST API of Buildbot 4.3 (/api/v2), as its master answered, behind a proxy that wants a token."""

    ids = {"complete": 1, "fail": 2, "last": 3}
    results: ClassVar = {"complete": 0, "fail": 2, "last": 0}

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {self.secret}":
            return 401, Text("<html>401 Authorization Required</html>")
        match asked.method, asked.path.removeprefix("/api/v2/").split("/"):
            case "GET", ["builders", *rest]:
                return 200, self._of_builders(rest, int(asked.query.get("offset", 0)))
            case "POST", ["forceschedulers", name]:
                return self._start(name, asked.body["params"])
            case "GET", ["buildrequests"]:
                found = [self._told(run, with_reason=True) for run in reversed(self.runs.values())]
                builder = int(asked.query["builderid"])
                return 200, {"buildrequests": [one for one in found if one["builderid"] == builder]}
            case method, ["buildrequests", number, *rest] if number in self.runs:
                return self._of_request(method, self.runs[number], rest)
            case "GET", ["builds", number, *rest] if number in self.runs:
                return 200, self._of_build(self.runs[number], rest)
            case "POST", ["buildrequests", _]:
                # It claims an id that it does not know, and never builds the request that gets it later.
                return 200, {"id": 1, "jsonrpc": "2.0", "result": None}
        return 404, {"error": f"not found while getting from endpoint for {asked.path}"}

    def _of_builders(self, rest: list[str], begin: int) -> Any:
        if rest:
            disabled = {"name": "old", "enabled": False, "all_fields": []}
            force = {"name": "force", "enabled": True, "all_fields": FORCE_FIELDS}
            return {"forceschedulers": [disabled, force] if int(rest[0]) in self.ids.values() else []}
        every = [*map(self._builder, self.ids), OF_TRIGGERS]
        return {"builders": every[begin : begin + 2], "meta": {"total": len(every)}}

    def _of_build(self, run: Run, rest: list[str]) -> Any:
        if rest == ["steps"]:
            return {
                "steps": [{**STEP, "results": 0}, {**STEP, "number": 1, "results": self.results[run.job]}]
            }
        environment = ("sh -c brew", " environment:", "  HOME=/root")
        return Text(
            "\n".join([*environment, REASON, "program finished with exit code 3", "elapsedTime=0.01"])
        )

    def _builder(self, job: str) -> dict[str, Any]:
        words = f"Lets it {job}." if job != "last" else None
        return {
            "builderid": self.ids[job],
            "name": job,
            "description": words,
            "masterids": [1],
            "tags": ["tea"],
        }

    def _start(self, name: str, params: dict[str, Any]) -> Answer:
        job = next((job for job, number in self.ids.items() if str(number) == str(params["builderid"])), "")
        if name != "force" or not job:
            said = "AttributeError(\"'NoneType' object has no attribute 'force'\")"
            return 500, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": said}}
        if params.get("cups") == 0:
            return 400, {
                "jsonrpc": "2.0",
                "id": 1,
                "error": {"code": -32602, "message": {"cups": "Cups: none"}},
            }
        run = self.add(Run(job, str(10 + len(self.runs)), key=params["reason"], arguments=params))
        return 200, {"id": 1, "jsonrpc": "2.0", "result": [int(run.id), {str(self.ids[job]): int(run.id)}]}

    def _results(self, run: Run) -> int:
        return -1 if not run.ended else 6 if run.stopped else self.results[run.job]

    def _told(self, run: Run, *, with_reason: bool = False) -> dict[str, Any]:
        return {
            "buildrequestid": int(run.id),
            "builderid": self.ids[run.job],
            "results": self._results(run),
            "complete": bool(run.ended),
            "submitted_at": int(run.began),
            "claimed_at": int(run.began),
            "complete_at": int(run.ended) or None,
            "properties": {"reason": [run.key, "Force Build Form"]} if with_reason else None,
        }

    def _of_request(self, method: str, run: Run, rest: list[str]) -> Answer:
        match method, rest:
            case "GET", []:
                return 200, {"buildrequests": [self._told(run)], "meta": {}}
            case "GET", ["builds"]:
                state = "building" if not run.ended else "build successful"
                properties = {"cups": [run.arguments.get("cups"), "Force Build Form"]}
                build = {"buildid": int(run.id), "number": 7, "state_string": state, "properties": properties}
                return 200, {"builds": [build], "meta": {"total": 1}}
            case "POST", []:
                run.stopped = run.stopped or time.time()
                return 200, {"id": 1, "jsonrpc": "2.0", "result": None}
        return 404, {"error": "not found"}


STEP = {"name": "brew", "number": 0, "hidden": False, "started_at": 1795546019}
OF_TRIGGERS = {"builderid": 4, "name": "triggered", "description": None, "masterids": [1], "tags": []}
FORCE_FIELDS: list[dict[str, Any]] = [
    {
        "type": "nested",
        "fullName": None,
        "fields": [
            {"type": "username", "fullName": "username", "hide": False, "label": "Your name:", "default": ""},
            {
                "type": "text",
                "fullName": "reason",
                "hide": False,
                "label": "reason",
                "default": "force build",
            },
            {"type": "int", "fullName": "priority", "hide": False, "label": "priority", "default": 0},
        ],
    },
    {
        "type": "nested",
        "fullName": None,
        "fields": [
            {
                "type": "text",
                "fullName": "branch",
                "hide": False,
                "label": "Branch:",
                "default": "",
                "tooltip": "",
                "required": False,
            },
            {"type": "fixed", "fullName": "revision", "hide": True, "label": "revision", "default": ""},
        ],
    },
    {
        "type": "int",
        "fullName": "cups",
        "hide": False,
        "label": "Cups",
        "tooltip": "How many.",
        "default": 2,
        "required": True,
    },
    {
        "type": "list",
        "fullName": "sort",
        "hide": False,
        "label": "Sort",
        "tooltip": "",
        "default": "",
        "required": True,
        "multiple": False,
        "strict": True,
        "choices": ["Assam", "Darjeeling"],
    },
    {"type": "bool", "fullName": "milk", "hide": False, "label": "Milk", "tooltip": "", "default": False},
]


class Argo(JobEngine):
    """Argo Workflows 3.6 by its server (/api/v1), with workflow templates in the namespace argo."""

    supplied: tuple[str, ...] = ("good", "note")
    """The outputs that a run of ASKING wants."""

    def answer(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {self.secret}":
            return 401, {"code": 16, "message": "token not valid"}
        match asked.method, asked.path.removeprefix("/api/v1").strip("/").split("/"):
            case "GET", ["workflow-templates", "argo"]:
                return self._list(asked.query)
            case "POST", ["workflows", "argo", "submit"]:
                return self._start(asked.body)
            case "GET", ["workflows", "argo", run_id] if run_id in self.runs:
                return 200, self._told(self.runs[run_id])
            case "PUT", ["workflows", "argo", run_id, "set"] if run_id in self.runs:
                return self._set(self.runs[run_id], asked.body)
            case "PUT", ["workflows", "argo", run_id, verb] if run_id in self.runs:
                return self._control(verb, self.runs[run_id])
        return 404, {"code": 5, "message": f"{asked.path} not found"}

    def _control(self, verb: str, run: Run) -> Answer:
        if verb == "retry" and self._told(run)["status"]["phase"] != "Failed":
            return 400, {"code": 3, "message": "workflow must be Failed/Error to retry"}
        if verb == "retry":
            run.go_on()
        elif run.ended:
            return 400, {"code": 3, "message": f"cannot {verb} completed workflow"}
        elif verb in ("stop", "terminate"):
            run.stopped = time.time()
        else:
            run.is_held = verb == "suspend"
        return 200, self._told(run)

    def _list(self, query: dict[str, str]) -> Answer:
        begin = int(query.get("listOptions.continue", "0"))
        jobs = list(SECONDS)
        following = {"continue": str(begin + 2)} if begin + 2 < len(jobs) else {}
        items = [self._template(job) for job in jobs[begin : begin + 2]]
        return 200, {"metadata": {"resourceVersion": "1"} | following, "items": items}

    def _template(self, job: str) -> dict[str, Any]:
        words = {"workflows.argoproj.io/description": f"Lets it {job}."}
        parameters = [{"name": "cups", "value": "2", "description": "How many."}, {"name": "sort"}]
        arguments = {"parameters": parameters} if job == "complete" else {}
        return {"metadata": {"name": job, "annotations": words}, "spec": {"arguments": arguments}}

    def _start(self, body: Any) -> Answer:
        job, options = body["resourceName"], body["submitOptions"]
        if job not in (*SECONDS, ASKING):
            return 404, {"code": 5, "message": f'workflowtemplates.argoproj.io "{job}" not found'}
        if options["name"] in self.runs:
            return 409, {"code": 6, "message": f'workflows.argoproj.io "{options["name"]}" already exists'}
        given = dict(parameter.split("=", 1) for parameter in options["parameters"])
        run = self.add(Run(job, options["name"], key=options["name"], arguments=given))
        return 200, self._told(run) | {"status": {}}

    def _told(self, run: Run) -> dict[str, Any]:
        state = "Failed" if run.stopped or run.job == "fail" else "Succeeded"
        phase = state if run.ended else "Running"
        parameters = [{"name": name, "value": value} for name, value in (run.arguments or {}).items()]
        node = {"displayName": run.id, "type": "Steps", "phase": phase, "outputs": {"parameters": parameters}}
        pod = {"displayName": "brew", "type": "Pod", "phase": phase, "boundaryID": run.id, "message": REASON}
        nodes = {run.id: node, f"{run.id}-1": pod}
        if run.job == ASKING:
            nodes[f"{run.id}-2"] = self._suspended(run)
        times = {"startedAt": moment(run.began), "finishedAt": moment(run.ended)}
        stopped = {"shutdown": "Stop"} if run.stopped else {"suspend": True} if run.is_held else {}
        return {
            "metadata": {"name": run.id, "namespace": "argo"},
            "spec": {"workflowTemplateRef": {"name": run.job}} | stopped,
            "status": {"phase": phase, "progress": "0/1", "nodes": nodes} | times,
        }

    def _suspended(self, run: Run) -> dict[str, Any]:
        """Its output `good` has the choices of the input of that name; `note` takes any text."""
        choices = {"name": "good", "value": "no", "enum": ["yes", "no"], "description": "Is it good?"}
        supplied = [{"name": name, "valueFrom": {"supplied": {}}} for name in self.supplied]
        return {
            "id": f"{run.id}-2",
            "displayName": "approve",
            "type": "Suspend",
            "phase": "Succeeded" if run.ended else "Running",
            "inputs": {"parameters": [choices] if supplied else None},
            "outputs": {"parameters": supplied},
        }

    def _set(self, run: Run, body: Any) -> Answer:
        """Of Argo's own checks: the node, and the names of the outputs."""
        told = json.loads(body["outputParameters"]) if body["outputParameters"] != "" else {}
        if run.ended or body["nodeFieldSelector"] != f"id={run.id}-2":
            return 500, {"code": 2, "message": "currently, set only targets suspend nodes"}
        if unknown := told.keys() - {*self.supplied}:
            return 400, {"code": 3, "message": f"node is not expecting output parameter '{min(unknown)}'"}
        assert body["phase"] == "Succeeded"
        run.answer = told or "resumed"
        return 200, self._told(run)
