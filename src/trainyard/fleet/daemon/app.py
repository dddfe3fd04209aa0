"""The HTTP interface of the daemon.

======================= ===============================================================================================
POST /jobs              submit one job: a mapping in the own form of workloads, as JSON or YAML
GET /jobs               the last 1000 jobs, or ``?last=N``, as they were submitted, and all that are not over;
                        ``?user=NAME&state=STATE,STATE``
GET /jobs/NAME          one job
DELETE /jobs/NAME       cancel a job
GET /jobs/NAME/log      its last steps and what its processes printed, as text; ``?lines=N``
GET /events             what happened, the newest first; ``?last=N&user=NAME&job=NAME``
GET /spans              which jobs had which devices in the last hour, or ``?within_s=S``, the newest first; ``?last=N``
GET /curves             loss and speed over steps, of jobs whose log the user may read: running jobs, then the
                        newest others; ``?last=N``
GET /cluster            nodes, devices, and who has them
GET /metrics            for Prometheus
GET /, /healthz         a page to watch all this; whether the daemon schedules. These two need no token
======================= ===============================================================================================

Answers that are no success are ``{"error": "what was asked for, and what is allowed"}``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from trainyard.fleet.daemon.curves import curve_of
from trainyard.fleet.daemon.daemon import Daemon
from trainyard.fleet.daemon.limits import ConcurrencyLimit, body_of
from trainyard.fleet.daemon.log import log_text
from trainyard.fleet.daemon.metrics import metrics_text
from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.store import StateError
from trainyard.fleet.daemon.tables import Record, State
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.errors import FleetError
from trainyard.fleet.span import Span
from trainyard.fleet.workload.level1 import UnansweredError
from trainyard.hardware.interface import is_loopback
from trainyard.reading import shown
from trainyard.reading.limits import LONGEST_S

_MOST_BYTES, _MOST_ROWS = 65_536, 100_000
_SUBMISSIONS_AT_ONCE, _CURVES_AT_ONCE = 8, 4
_MOST_SPANS, _MOST_RUNS, _MOST_CURVES = 2000, 20_000, 20
_AGAIN_S = 5  # after which what is not there now may be
_FORMS = ("application/json", "application/yaml", "application/x-yaml", "text/yaml")
_PAGE_RULES = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Api:
    """The HTTP interface of a daemon.

    Parameters
    ----------
    users : users that may send requests.
    """

    def __init__(self, daemon: Daemon, users: Users) -> None:
        self.daemon, self.users = daemon, users
        self._submissions = ConcurrencyLimit(_SUBMISSIONS_AT_ONCE, "jobs are submitted")
        self._readers = ConcurrencyLimit(_CURVES_AT_ONCE, "requests for curves are answered")

    def app(self) -> FastAPI:
        """The application for a server."""
        checks = [Depends(_check_parameters)]
        app = FastAPI(title="Trainyard", docs_url=None, redoc_url=None, openapi_url=None, dependencies=checks)
        for method, path, act in (
            ("POST", "/jobs", self.submit),
            ("GET", "/jobs", self.jobs),
            ("GET", "/jobs/{name}", self.job),
            ("DELETE", "/jobs/{name}", self.cancel),
            ("GET", "/jobs/{name}/log", self.log),
            ("GET", "/events", self.events),
            ("GET", "/spans", self.spans),
            ("GET", "/curves", self.curves),
            ("GET", "/cluster", self.cluster),
            ("GET", "/metrics", self.metrics),
            ("GET", "/", self.page),
            ("GET", "/healthz", self.health),
        ):
            app.add_api_route(path, act, methods=[method])
        for kind, status in (
            (Refusal, 0),
            (StateError, 503),
            (UnansweredError, 503),
            (FleetError, 422),
            (HTTPException, 0),
            (RequestValidationError, 422),
        ):
            app.add_exception_handler(kind, _answer(status))
        return app

    def user(self, request: Request) -> str:
        """Return the name of the user who asks.

        Raises
        ------
        Refusal
            If that is nobody who may.
        """
        named = request.headers.get("host", "")
        try:
            host = urlsplit(f"//{named}").hostname or ""
        except ValueError as error:
            raise Refusal(400, f"header Host is NAME, ADDRESS or [ADDRESS], not {named!r}") from error
        if not self.users.by_token and not is_loopback(host):
            # Somebody else's page, open in a browser here, gets here under a name of its own.
            raise Refusal(403, f"without tokens this daemon answers as localhost only, not as {host!r}")
        return self.users.of(request.headers.get("authorization", ""))

    async def submit(self, request: Request) -> Response:
        """POST /jobs."""
        user = self.user(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _FORMS:  # also keeps forms of other pages out, which cannot send such types
            raise Refusal(415, f"a job comes as {', '.join(_FORMS)}, not as {kind or 'nothing'!r}")
        form = await body_of(request, _MOST_BYTES)
        try:
            text = form.decode()
        except UnicodeDecodeError as error:
            raise Refusal(422, f"a job is text in UTF-8: {error}") from error
        with self._submissions.taken():
            record = await run_in_threadpool(self.daemon.submit, text, user)
        return JSONResponse(job_document(record), 201)

    def jobs(self, request: Request, last: int = 1000, user: str | None = None, state: str = "") -> Response:
        """GET /jobs."""
        self.user(request)
        records = self.daemon.store.recent(_few(last), user, _states(state))
        return JSONResponse({"jobs": [job_document(record) for record in records]})

    def job(self, request: Request, name: str) -> Response:
        """GET /jobs/NAME."""
        self.user(request)
        return JSONResponse(job_document(self.daemon.job(name)))

    def cancel(self, request: Request, name: str) -> Response:
        """DELETE /jobs/NAME."""
        user = self.user(request)
        return JSONResponse(job_document(self.daemon.cancel(name, user, user in self.users.admins)), 202)

    def log(self, request: Request, name: str, lines: int = 100) -> Response:
        """GET /jobs/NAME/log."""
        user = self.user(request)
        record = self.daemon.own_job(name, user, user in self.users.admins)
        return PlainTextResponse(log_text(self.daemon.directory(record.name), lines))

    def events(
        self, request: Request, last: int = 50, user: str | None = None, job: str | None = None
    ) -> Response:
        """GET /events."""
        self.user(request)
        return JSONResponse({"events": self.daemon.store.events(_few(last), job, user)})

    def spans(self, request: Request, within_s: float = 3600.0, last: int = _MOST_SPANS) -> Response:
        """GET /spans."""
        self.user(request)
        now_s = self.daemon.clock()
        from_s = now_s - max(0.0, min(within_s, LONGEST_S))
        most = max(0, min(last, _MOST_SPANS))
        return JSONResponse(spans_document(self.daemon.store.spans(from_s, most), from_s, now_s, most))

    def curves(self, request: Request, last: int = _MOST_CURVES) -> Response:
        """GET /curves."""
        user = self.user(request)
        owner = None if user in self.users.admins else user
        started = [r for r in self.daemon.store.recent(_MOST_CURVES, owner) if r.first_start_s is not None]
        # Jobs with devices first, then the newest.
        started.sort(key=lambda record: (record.grant is None, -record.number))
        with self._readers.taken():
            names = [record.name for record in started[: max(0, min(last, _MOST_CURVES))]]
            found = {name: curve_of(self.daemon.directory(name)) for name in names}
        return JSONResponse({"curves": found})

    def cluster(self, request: Request) -> Response:
        """GET /cluster."""
        self.user(request)
        return JSONResponse(cluster_document(self.daemon))

    def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        self.user(request)
        text = metrics_text(self.daemon.store, self.daemon.cluster)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def page(self) -> Response:
        """GET /."""
        text = resources.files("trainyard.fleet.daemon").joinpath("page.html").read_text("utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": _PAGE_RULES})

    async def health(self) -> Response:
        """GET /healthz; of the loop itself, so that busy threads do not delay it."""
        problem = self.daemon.problem
        return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200)


def job_document(record: Record) -> dict[str, Any]:
    """A job as JSON has it."""
    share_done = record.done / record.work if record.work else 0.0
    return {
        "name": record.name,
        "user": record.owner,
        "state": record.state,
        "reason": record.reason,
        "model": record.model,
        "num_devices": record.num_devices,
        "devices": list(record.grant.devices) if record.grant else [],
        "steps": record.steps,
        "steps_done": None if record.steps is None else int(share_done * record.steps + 1e-6),
        "share_done": share_done,
        "attained_device_s": record.attained_device_s,
        "arrival_s": record.arrival_s,
        "first_start_s": record.first_start_s,
        "finish_s": record.finish_s,
    }


def cluster_document(daemon: Daemon) -> dict[str, Any]:
    """The nodes, and which jobs have which devices."""
    cluster, tenants = daemon.cluster, dict[int, list[str]]()
    for record in daemon.store.jobs(State.RUNNING, State.CANCELLING):
        for device in record.grant.devices if record.grant else ():
            tenants.setdefault(device, []).append(record.name)
    nodes = [
        {
            "node": number,
            "device_type": node.device_type,
            "is_away": number in cluster.away,
            "devices": [
                {"device": device, "jobs": tenants.get(device, [])}
                for device in range(int(cluster.first_device[number]), int(cluster.first_device[number + 1]))
            ],
        }
        for number, node in enumerate(cluster.nodes)
    ]
    return {
        "cluster": cluster.name,
        "policy": daemon.scheduler.text,
        "num_devices": cluster.num_devices,
        "num_devices_in_use": len(tenants),
        "problem": daemon.problem,
        "nodes": nodes,
    }


def spans_document(spans: Sequence[Span], from_s: float, now_s: float, most: int) -> dict[str, Any]:
    """Return spans of jobs on devices, the newest first, with runs of devices as (first, count).

    The end of an open span is null. ``is_cut`` says whether older spans may be left out.

    Parameters
    ----------
    most : number of spans that were asked for.
    """
    found: list[dict[str, Any]] = []
    num_runs = 0
    for span in spans:
        runs = _runs(span.devices)
        num_runs += len(runs)
        if num_runs > _MOST_RUNS:
            break
        end_s = span.end_s if math.isfinite(span.end_s) else None
        found.append({"job": span.job, "start_s": span.start_s, "end_s": end_s, "devices": runs})
    is_cut = len(spans) == most or len(found) < len(spans)
    return {"from_s": from_s, "now_s": now_s, "is_cut": is_cut, "spans": found}


def _runs(devices: Sequence[int]) -> list[list[int]]:
    """Return devices as runs of consecutive numbers, each (first, count)."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([device, 1])
    return runs


def _states(text: str) -> tuple[State, ...]:
    """Read states separated by commas; an empty text names none.

    Raises
    ------
    Refusal
        If there is no such state.
    """
    try:
        return tuple(State(part.strip()) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise Refusal(
            422, f"state is one of {', '.join(State)}, or several by commas, not {shown(text)}"
        ) from error


async def _check_parameters(request: Request) -> None:
    """Refuse parameters of the query that the address does not have, or that are there twice.

    Raises
    ------
    Refusal
        If there is one.
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            has = f"its parameters: {', '.join(known)}" if known else "it has none"
            raise Refusal(422, f"{request.url.path} has no parameter {shown(name)}; {has}")
        if given.count(name) > 1:
            raise Refusal(422, f"parameter {name} is there {given.count(name)} times; give it once")


def _few(last: int) -> int:
    return max(0, min(last, _MOST_ROWS))


def _answer(status: int) -> Any:
    """Return a function that makes a response of an error; status 0 stands for the error's own."""

    def answer(request: Request, error: Any) -> JSONResponse:
        code = status or getattr(error, "status", 0) or error.status_code
        text = str(getattr(error, "detail", "")) or str(error)
        if isinstance(error, RequestValidationError):
            text = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
        headers = {"WWW-Authenticate": "Bearer"} if code == 401 else {}
        retry_s = _AGAIN_S if code == 503 else getattr(error, "retry_s", 0)
        return JSONResponse(
            {"error": text}, code, headers | ({"Retry-After": str(retry_s)} if retry_s else {})
        )

    return answer
