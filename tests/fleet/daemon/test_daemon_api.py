"""The daemon over HTTP: a real server, and a real training on this machine."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from daemons import TRAINING, Running, serving
from private_modes import wrong_modes

from trainyard.cli import main as cli
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.private import write_private

ANN, BOB = "ann-has-this-token", "bob-has-that-token"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    write_private(path, f"# users of the tests\nann:{ANN}\nbob:{BOB}\n")
    return path


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve") / "fleet"
    with serving(
        folder, "--cluster", "1x2xlocal", "--policy", "fifo", "--token-file", str(tokens)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def submitted(daemon: Running) -> tuple[int, dict[str, Any]]:
    """A job of Ann's that trains for as long as it is let; the answer."""
    return daemon.ask("POST", "/jobs", {"name": "steady", **TRAINING, "steps": 1_000_000}, ANN)


@pytest.fixture(scope="module")
def steady(daemon: Running, submitted: tuple[int, dict[str, Any]]) -> str:
    """That job, once it trains."""
    daemon.wait("steady", "running", ANN, steps=1)
    return "steady"


def test_a_job_comes_runs_and_ends(daemon: Running, submitted: tuple[int, dict[str, Any]]) -> None:
    status, job = submitted
    assert (status, job["state"], job["user"]) == (201, "waiting", "ann")
    text = "name: brief\nnum_devices: 1\nmodel: gpt-tiny\nbatch_size: 4\nsteps: 3\n"
    status, _ = daemon.ask("POST", "/jobs", text, BOB, content_type="application/yaml")
    assert status == 201
    job = daemon.wait("brief", "ended failed", BOB)
    assert (job["state"], job["steps_done"], job["devices"]) == ("ended", 3, [])
    assert job["arrival_s"] <= job["first_start_s"] < job["finish_s"]
    assert job["attained_device_s"] > 0
    _, log = daemon.ask("GET", "/jobs/brief/log", token=BOB)
    assert re.findall(r"^step (\d+)  loss \d", log, re.M) == ["1", "2", "3"]
    _, last = daemon.ask("GET", "/jobs/brief/log?lines=1", token=BOB)
    assert re.findall(r"^step (\d+)", last, re.M) == ["3"]
    _, found = daemon.ask("GET", "/events", token=BOB)
    assert set(found["events"][0]) == {"number", "at_s", "job", "what", "text"}
    said = [event["what"] for event in found["events"] if event["job"] == "brief"]
    assert said == ["ends", "runs", "arrives"]
    assert list((daemon.folder / "jobs" / "brief" / "checkpoints").glob("step-*/*.safetensors"))
    assert not wrong_modes(daemon.folder)


def test_what_runs_where_is_told(daemon: Running, steady: str) -> None:
    _, cluster = daemon.ask("GET", "/cluster", token=BOB)
    assert cluster["policy"] == "fifo"
    devices = {each["device"]: each["jobs"] for node in cluster["nodes"] for each in node["devices"]}
    assert list(devices) == [0, 1]
    assert [steady] in devices.values()
    _, text = daemon.ask("GET", "/metrics", token=BOB)
    assert re.search(r'^trainyard_jobs\{state="running"\} [12]\.0$', text, re.M)
    assert re.search(r"^trainyard_devices 2\.0$", text, re.M)
    assert re.search(r"^trainyard_devices_in_use [12]\.0$", text, re.M)


def test_one_that_waits_says_why(daemon: Running, steady: str) -> None:
    assert (
        daemon.ask("POST", "/jobs", {"name": "wide", **TRAINING, "num_devices": 2, "steps": 9}, BOB)[0] == 201
    )
    job = daemon.wait("wide", "waiting", BOB)
    while job["reason"].startswith("not looked at yet"):
        job = daemon.wait("wide", "waiting", BOB)
    said = r"asks for 2 devices, (0 are|1 is) free; it is the 1st of those that wait"
    assert re.fullmatch(said, job["reason"])
    assert daemon.ask("DELETE", "/jobs/wide", token=BOB)[0] == 202
    assert daemon.wait("wide", "cancelled", BOB)["first_start_s"] is None


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"num_devices": 4}, 422, "asks for 4 devices of one type; cluster '1x2xlocal' has 2"),
        ({"model": "gpt-9"}, 422, "field 'model': got 'gpt-9', allowed is a model of the zoo: gpt-tiny"),
        ({"steps": "many"}, 422, "the job, line 1, field 'steps': got 'many', allowed is a whole number"),
        ({"steps": None, "length_s": 5}, 422, "'x' has a length and nothing to run"),
        ({"batch_size": 3, "num_devices": 2}, 422, "over which a batch of 3 rows divides: 1, 3"),
        ({"strategies": "gpipe(stages=64)"}, 422, "no plan for gpt-tiny by gpipe(stages=64)"),
        ({"strategies": "__import__('os')"}, 422, "field 'strategies'"),
        ({"model": "gpt3-175b"}, 422, "and 3 of them are there at once: more than the 100 GB"),
        ({"colour": "red"}, 422, "no such field; there are name, "),
        ({"name": "../../x"}, 422, "a folder of its name: '../../x'"),
        ({"arrival_s": 5}, 422, "leave arrival_s out"),
        ({"user": "bob"}, 403, "you are 'ann' and cannot submit jobs of 'bob'"),
        ({"name": "steady"}, 409, "there is or was a job 'steady'"),
    ],
)
def test_what_cannot_be_is_refused(
    daemon: Running, steady: str, change: object, status: int, said: str
) -> None:
    assert isinstance(change, dict)
    found = daemon.ask("POST", "/jobs", {"name": "x", **TRAINING, "steps": 5} | change, ANN)
    assert found[0] == status, found
    assert said in found[1]["error"]
    assert daemon.ask("GET", "/jobs/x", token=ANN)[0] == 404


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        ("- 1", "application/yaml", 422, "a job is a mapping of name"),
        ("{", "application/json", 422, "not YAML"),
        ("!!python/object/apply:os.system ['true']", "application/yaml", 422, "not YAML without code"),
        ("a: &a [1]\nb: [*a, *a]", "application/yaml", 422, "a job is a mapping"),
        ("[" * 60_000, "application/json", 422, "too deep in each other; allowed are 64 levels"),
        ("", "application/yaml", 422, "nothing there"),
        ("x" * 70_000, "application/yaml", 413, "at most 65536 bytes"),
        ("name=x", "application/x-www-form-urlencoded", 415, "not as 'application/x-www-form-urlencoded'"),
    ],
    ids=["list", "cut off", "code", "aliases", "deep", "empty", "large", "form"],
)
def test_what_is_no_job_is_refused(daemon: Running, body: str, kind: str, status: int, said: str) -> None:
    found = daemon.ask("POST", "/jobs", body, ANN, content_type=kind)
    assert found[0] == status, found
    assert said in found[1]["error"]


def test_another_users_job_is_theirs(daemon: Running, steady: str) -> None:
    for method, path in (("DELETE", f"/jobs/{steady}"), ("GET", f"/jobs/{steady}/log")):
        assert daemon.ask(method, path, token=BOB) == (
            403,
            {
                "error": "job 'steady' is of user 'ann'; only they and administrators may cancel it or read its log"
            },
        )
    assert daemon.ask("GET", f"/jobs/{steady}", token=BOB)[1]["state"] == "running"


@pytest.mark.parametrize("token", ["", "not-a-token", ANN[:-1]])
@pytest.mark.parametrize("path", ["/jobs", "/jobs/steady/log", "/cluster", "/metrics", "/events"])
def test_without_a_token_nothing_is_told(daemon: Running, path: str, token: str) -> None:
    status, answer = daemon.ask("GET", path, token=token)
    assert status == 401
    assert "a token is needed" in answer["error"]


def test_two_things_need_no_token(daemon: Running) -> None:
    assert daemon.ask("GET", "/healthz") == (200, "ok\n")
    status, page = daemon.ask("GET", "/")
    assert status == 200
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)


def test_what_is_not_there(daemon: Running) -> None:
    assert daemon.ask("GET", "/nowhere", token=ANN)[0] == 404
    status, answer = daemon.ask("DELETE", "/jobs/nobody", token=ANN)
    assert (status, answer["error"].partition(";")[0]) == (404, "there is no job 'nobody'")
    assert daemon.ask("GET", "/jobs?last=x", token=ANN)[0] == 422
    assert daemon.ask("GET", f"/jobs?last={10**30}", token=ANN)[0] == 200


@pytest.mark.parametrize(
    "name",
    ["%00", "steady%00", "%2e%2e", "..%2f..%2fetc%2fpasswd", "STEADY", "steady%20", "%ff", "%F0%9F%98%80", "a" * 9000],
)  # fmt: skip
def test_a_name_that_no_job_can_have_is_not_there(daemon: Running, steady: str, name: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/log")):
        assert daemon.ask(method, f"/jobs/{name}{path}", token=ANN)[0] in (404, 405)
    assert daemon.ask("GET", f"/jobs/{steady}", token=ANN)[1]["state"] == "running"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\x00b", "é", "a" * 101, "-x", "a\nb", "\ud800", " "]
)
def test_a_job_has_a_name_that_a_folder_can_have(daemon: Running, steady: str, name: str) -> None:
    status, answer = daemon.ask("POST", "/jobs", {"name": name, **TRAINING, "steps": 5}, ANN)
    assert status == 422
    assert len(answer["error"]) < 1000
    assert {path.name for path in (daemon.folder / "jobs").iterdir()} >= {"steady"}


def test_names_that_differ_in_case_are_two(daemon: Running, steady: str) -> None:
    assert daemon.ask("POST", "/jobs", {"name": "Steady", **TRAINING, "steps": 5}, BOB)[0] == 201
    assert daemon.ask("DELETE", "/jobs/Steady", token=BOB)[0] == 202
    assert daemon.wait("Steady", "cancelled", BOB)["user"] == "bob"
    assert daemon.ask("GET", f"/jobs/{steady}", token=ANN)[1]["state"] == "running"


def test_tokens_are_in_nothing_that_is_written(daemon: Running, steady: str) -> None:
    daemon.ask("GET", "/jobs", token=ANN)
    daemon.ask("GET", f"/jobs/{steady}/log?token={ANN}", token=BOB)
    written = [path for path in (daemon.folder.parent).rglob("*") if path.is_file()]
    assert daemon.folder.parent / "daemon.log" in written
    for path in written:
        with suppress(FileNotFoundError):  # of a checkpoint that has just been replaced
            assert not {ANN.encode(), BOB.encode()} & set(re.findall(rb"[\w-]+", path.read_bytes())), path


def test_what_a_daemon_writes_is_for_its_user(daemon: Running, steady: str) -> None:
    """Its folder, its state, and all that its jobs write."""
    written = [daemon.folder, *daemon.folder.rglob("*")]
    assert {"state.sqlite", "scheduler.lock", "metrics.jsonl", "rank-0.log"} <= {
        path.name for path in written
    }
    for path in written:
        with suppress(FileNotFoundError):  # of a checkpoint that has just been replaced
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_three_hundred_connections_keep_nobody_out(daemon: Running, steady: str) -> None:
    """Of clients that say nothing, or stop amid a request."""
    parts = urlsplit(daemon.url)
    begun = (b"", b"GET /jo", b"POST /jobs HTTP/1.1\r\nhost: localhost\r\nx: ")
    with ExitStack() as held:
        for number in range(300):
            client = held.enter_context(socket.create_connection((parts.hostname, parts.port)))
            client.sendall(begun[number % 3])
        assert daemon.ask("GET", "/healthz") == (200, "ok\n")
        assert daemon.ask("GET", f"/jobs/{steady}", token=ANN)[1]["state"] == "running"
    steps = daemon.wait(steady, "running", ANN)["steps_done"]
    daemon.wait(steady, "running", ANN, steps=steps + 1)


def test_a_body_without_an_end_is_refused_before_it_ends(daemon: Running) -> None:
    parts = urlsplit(daemon.url)
    head = (
        f"POST /jobs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ANN}\r\n"
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port)) as client:
        client.sendall(head.encode() + b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
        assert b" 413 " in client.recv(4096)


def test_a_job_that_runs_is_listed_however_old(daemon: Running, steady: str) -> None:
    """Behind so many later ones as it is asked for; those that are over are not."""
    daemon.ask("POST", "/jobs", {"name": "later", **TRAINING, "steps": 5}, ANN)
    daemon.ask("DELETE", "/jobs/later", token=ANN)
    daemon.wait("later", "cancelled", ANN)
    for last, names in ((1, ["steady", "later"]), (0, ["steady"]), (-1, ["steady"])):
        status, found = daemon.ask("GET", f"/jobs?last={last}", token=ANN)
        assert (status, [job["name"] for job in found["jobs"]]) == (200, names)


def test_a_second_daemon_of_a_folder_is_refused(daemon: Running, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("fleet", "daemon", "--cluster", "1x2xlocal", "--folder", str(daemon.folder), "--port", "0")
    assert cli.main(command) == 2
    assert "a daemon or a run has" in capsys.readouterr().err


def test_the_command_line_asks_it(
    daemon: Running,
    steady: str,
    tokens: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch,
) -> None:
    own = tmp_path / "token"
    write_private(own, f"{ANN}\n")
    monkeypatch.setenv("TRAINYARD_TOKEN_FILE", str(own))
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(
        "name,arrival_s,num_devices,deadline_s,steps,model,batch_size\nfrom-file,7,2,99,5,gpt-tiny,4\n"
    )
    to = ("--server", daemon.url)

    def told(*verb: str) -> str:
        assert cli.main((*verb, *to)) == 0
        return capsys.readouterr().out

    assert "submitted 1: from-file" in told("fleet", "submit", str(jobs))
    daemon.wait("from-file", "waiting", ANN)
    shown = told("fleet", "status")
    assert "1x2xlocal under fifo" in shown
    assert re.search(r"steady +ann +running +gpt-tiny", shown)
    document = json.loads(told("fleet", "status", "--json"))
    assert {job["name"] for job in document["jobs"]} >= {"steady", "from-file"}
    assert "step " in told("fleet", "logs", "steady")
    assert json.loads(told("fleet", "logs", "steady", "--lines", "1", "--json"))["log"].count("step ") == 1
    assert "from-file is cancelling" in told("fleet", "cancel", "from-file")
    bobs = ("--token-file", str(tokens.with_name("bobs")))
    write_private(Path(bobs[1]), f"bob:{BOB}\n")
    assert cli.main(("fleet", "cancel", "steady", *bobs, *to)) == 2
    assert (
        "error: job 'steady' is of user 'ann'; only they and administrators may cancel it"
        in capsys.readouterr().err
    )


def test_no_daemon_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("fleet", "status", "--server", "http://127.0.0.1:9")) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no daemon answers at http://127.0.0.1:9 ")
    assert "start one with `trainyard fleet daemon" in said
    assert said.count("\n") == 1


def shown(url: str, folder: Path) -> str:
    """The page as a browser has made it."""
    assert BROWSER is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom")
    command = [BROWSER, *flags, f"--user-data-dir={folder}", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: none is on the PATH, and CHROMIUM is not set")
def test_the_page_shows_jobs(daemon: Running, steady: str, tmp_path: Path) -> None:
    daemon.ask("POST", "/jobs", {"name": "queued", **TRAINING, "num_devices": 2, "steps": 5}, ANN)
    while not daemon.wait("queued", "waiting", ANN)["reason"]:
        pass
    dom = shown(f"{daemon.url}/#token={ANN}", tmp_path)
    daemon.ask("DELETE", "/jobs/queued", token=ANN)
    assert '<div id="errors"></div>' in dom
    assert re.search(r"1x2xlocal under fifo: [12] of 2 devices in use", dom)
    assert re.search(r'<div class="device used">[01]: steady</div>', dom)
    tables = dict(re.findall(r'<table id="(\w+)">(.*?)</table>', dom, re.S))
    assert "<td>steady</td><td>ann</td><td>gpt-tiny</td>" in tables["running"]
    assert re.search(r" \d+ of 1000000 steps<", tables["running"])
    assert re.search(r"<td>queued</td>.*free; it is the 1st of those that wait</td>", tables["queue"])
    assert re.search(r"<td>steady</td><td>runs on device [01]</td>", tables["history"])


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: none is on the PATH, and CHROMIUM is not set")
def test_the_page_tells_nothing_without_a_token(daemon: Running, steady: str, tmp_path: Path) -> None:
    dom = shown(daemon.url, tmp_path)
    assert "a token is needed" in dom
    assert "steady" not in dom


def test_cancelling_stops_a_job_for_good(daemon: Running, steady: str) -> None:
    # The last test here: the job that all others look at goes.
    assert daemon.ask("DELETE", f"/jobs/{steady}", token=ANN)[0] == 202
    job = daemon.wait(steady, "cancelled", ANN)
    assert job["devices"] == []
    directory = JobDirectory(daemon.folder / "jobs" / steady)
    assert directory.groups() == []
    assert directory.saved_steps() >= job["steps_done"] > 0, "what it had done is kept"
    assert daemon.ask("DELETE", f"/jobs/{steady}", token=ANN)[0] == 409
