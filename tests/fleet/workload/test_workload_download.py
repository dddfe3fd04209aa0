"""Fetching traces, from a server on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from shared_data import DATA, needs_data

from trainyard.cli import main as cli
from trainyard.fleet.workload.download import TRACES, Trace
from trainyard.fleet.workload.read import FORMATS, read_workload
from trainyard.reading import ReadingError
from trainyard.reading.download import download, unpacked

CONTENT = (Path(__file__).parent / "fixtures" / "cluster_log.csv").read_bytes()


class Server(ThreadingHTTPServer):
    """Serves ``content`` under every path but ``/gone``: at most ``cut`` bytes at once, ranges only if it ``resumes``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cut, self.resumes = CONTENT, len(CONTENT) * 2, True
        self.asked: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        span = self.headers.get("Range")
        self.server.asked.append(span)
        if self.path == "/gone":
            self.send_error(404)
            return
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and self.server.resumes else 0
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def traces(server: Server) -> dict[str, Trace]:
    url = f"http://127.0.0.1:{server.server_port}"
    trace = Trace(
        "made up", f"{url}/cluster_log.csv", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "helios"
    )
    return {
        "made-up": trace,
        "gone": replace(trace, url=f"{url}/gone"),
        "other": replace(trace, sha256="0" * 64),
    }


def test_fetched_whole_and_only_once(server: Server, traces: dict[str, Trace], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    path = download(traces, "made-up", folder)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in folder.iterdir()] == ["cluster_log.csv"]
    assert len(list(read_workload(path))) == 3
    assert download(traces, "made-up", folder) == path
    assert server.asked == [None]


@pytest.mark.parametrize("resumes", [True, False])
def test_goes_on_where_it_stopped(
    server: Server, traces: dict[str, Trace], tmp_path: Path, resumes: bool
) -> None:
    server.cut, server.resumes = 100, resumes
    with pytest.raises(ReadingError, match="goes on where it stopped"):
        download(traces, "made-up", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["cluster_log.csv.part"]
    server.cut = len(CONTENT)
    assert download(traces, "made-up", tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100-"]


def test_a_part_that_is_whole_is_not_fetched_again(
    server: Server, traces: dict[str, Trace], tmp_path: Path
) -> None:
    (tmp_path / "cluster_log.csv.part").write_bytes(CONTENT)
    assert download(traces, "made-up", tmp_path).read_bytes() == CONTENT
    assert server.asked == []


def test_other_contents_are_not_kept(traces: dict[str, Trace], tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match=r"has SHA-256 .*, not 0000.*Nothing was kept"):
        download(traces, "other", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_should_be(server: Server, traces: dict[str, Trace], tmp_path: Path) -> None:
    server.content = CONTENT * 3
    with pytest.raises(ReadingError, match=f"is longer than {len(CONTENT)} bytes"):
        download(traces, "made-up", tmp_path)
    assert not (tmp_path / "cluster_log.csv").exists()


def test_a_file_in_the_way_is_left_alone(traces: dict[str, Trace], tmp_path: Path) -> None:
    (tmp_path / "cluster_log.csv").write_text("mine")
    with pytest.raises(ReadingError, match="is there, and is not trace 'made-up'; move it away"):
        download(traces, "made-up", tmp_path)
    assert (tmp_path / "cluster_log.csv").read_text() == "mine"


def test_what_the_server_says(traces: dict[str, Trace], tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match="the server says 404"):
        download(traces, "gone", tmp_path)
    with pytest.raises(ReadingError, match="no trace 'nothing' to download; there are made-up, gone"):
        download(traces, "nothing", tmp_path)


def test_without_a_network(server: Server, traces: dict[str, Trace], tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    unreachable = {"made-up": replace(traces["made-up"], url=f"http://127.0.0.1:{port}/cluster_log.csv")}
    with pytest.raises(
        ReadingError, match=r"cannot fetch .*Check the network and call again.*put it at .*cluster_log.csv$"
    ):
        download(unreachable, "made-up", tmp_path)


def test_progress_is_told(server: Server, traces: dict[str, Trace], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    download(traces, "made-up", tmp_path, tell=lambda done, size: told.append((done, size)))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert told == sorted(told)


def test_a_folder_that_cannot_be(traces: dict[str, Trace], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ReadingError, match=r"cannot make folder .*file.*; give another one"):
            download(traces, "made-up", folder)


@pytest.fixture
def command(
    traces: dict[str, Trace], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the verb, to which the traces of the server are known, too."""
    for name, trace in traces.items():
        monkeypatch.setitem(TRACES, name, trace)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(("fleet", "download", *arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_verb_lists(command: Callable[..., tuple[int, str, str]], server: Server) -> None:
    code, out, _ = command()
    assert code == 0
    for name, trace in TRACES.items():
        assert name in out
        assert trace.about.split()[0] in out
    listed = json.loads(command("--json")[1])["traces"]
    assert [(trace["name"], trace["url"], trace["size_bytes"]) for trace in listed] == [
        (name, trace.url, trace.size_bytes) for name, trace in TRACES.items()
    ]
    assert server.asked == []


def test_the_verb_fetches(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    path = folder / "cluster_log.csv"
    code, out, err = command("made-up", "--folder", str(folder))
    assert (code, err) == (0, "")
    assert out == f"{path}: made up\nsimulate it with `trainyard fleet simulate --trace {path} --cluster C`\n"
    assert path.read_bytes() == CONTENT
    again = json.loads(command("made-up", "--folder", str(folder), "--json")[1])
    assert (again["name"], again["path"], again["format"]) == ("made-up", str(path), "helios")


@pytest.mark.parametrize("format", ["", "shockwave"])
def test_the_verb_says_what_is_missing(
    command: Callable[..., tuple[int, str, str]],
    traces: dict[str, Trace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
) -> None:
    monkeypatch.setitem(TRACES, "made-up", replace(traces["made-up"], format=format))
    _, out, _ = command("made-up", "--folder", str(tmp_path))
    assert (
        "--profiles FILE`, where FILE is its throughputs" if format else "it is for --profiles of the traces"
    ) in out


def archive(folder: Path, **files: bytes | None) -> Path:
    """A tar file of files by name; None is a link that leads out of it."""
    path = folder / "packed.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            member.size = len(content or b"")
            tar.addfile(member, io.BytesIO(content or b""))
    return path


def test_only_the_trace_is_unpacked_and_nothing_elsewhere(tmp_path: Path) -> None:
    """Whatever the archive has beside it, and wherever it says that it belongs."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    members = {
        "../other.csv": b"other",
        "/tmp/x/log.csv": None,
        "../../log.csv": CONTENT,
        "log.csv": b"later",
    }
    path = archive(folder, **members)
    assert unpacked(path, "log.csv") == folder / "log.csv"
    assert (folder / "log.csv").read_bytes() == CONTENT
    assert not (folder / "log.csv").is_symlink()
    assert {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()} == {
        Path("a/b/packed.tar.gz"),
        Path("a/b/log.csv"),
    }
    assert unpacked(path, "log.csv") == folder / "log.csv", "again"
    (folder / "log.csv").write_text("mine")
    with pytest.raises(ReadingError, match=r"is there, and is not from .*; move it away"):
        unpacked(path, "log.csv")
    assert (folder / "log.csv").read_text() == "mine"


def test_archives_that_cannot_be_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"log.csv": CONTENT * 99, "link.csv": None})
    for name in ("none.csv", "link.csv"):
        with pytest.raises(ReadingError, match=f"has no file {name}"):
            unpacked(path, name)
    path.write_bytes(path.read_bytes()[:80])
    with pytest.raises(ReadingError, match=r"cannot unpack log\.csv from"):
        unpacked(path, "log.csv")
    path.write_text("no archive")
    with pytest.raises(ReadingError, match=r"cannot unpack log\.csv from"):
        unpacked(path, "log.csv")
    assert not (tmp_path / "log.csv").exists()


def test_the_verb_fetches_speeds_and_unpacks(
    command: Callable[..., tuple[int, str, str]],
    server: Server,
    traces: dict[str, Trace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has one content under all addresses: an archive with a trace is the file of speeds, too."""
    server.content = archive(tmp_path, **{"trace-data/cluster_log.csv": CONTENT}).read_bytes()
    server.cut = len(server.content)
    base = replace(
        traces["made-up"], sha256=hashlib.sha256(server.content).hexdigest(), size_bytes=len(server.content)
    )
    address = base.url.rpartition("/")[0]
    speeds = replace(base, url=f"{address}/speeds.json", format="")
    monkeypatch.setitem(TRACES, "speeds", speeds)
    packed = replace(base, url=f"{address}/all.tar.gz", inside="cluster_log.csv", profiles="speeds")
    monkeypatch.setitem(TRACES, "made-up", packed)
    folder = tmp_path / "new"
    code, out, _ = command("made-up", "--folder", str(folder))
    assert code == 0
    path, profiles = folder / "cluster_log.csv", folder / "speeds.json"
    assert f"fleet simulate --trace {path} --cluster C --profiles {profiles}`" in out
    assert path.read_bytes() == CONTENT
    assert profiles.read_bytes() == server.content
    found = json.loads(command("made-up", "--folder", str(folder), "--json")[1])
    assert (found["path"], found["profiles_path"]) == (str(path), str(profiles))


def test_errors_of_the_verb(
    command: Callable[..., tuple[int, str, str]], server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    server.cut = 100
    for name, folder, said in (
        ("nothing", "new", "no trace 'nothing' to download; there are philly, philly-small"),
        ("gone", "new", "the server says 404"),
        ("made-up", "file", "it is no folder; give another folder"),
        ("made-up", "new", "call again, which goes on where it stopped"),
    ):
        code, out, err = command(name, "--folder", str(tmp_path / folder))
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert said in err


def test_the_table() -> None:
    for trace in TRACES.values():
        assert trace.url.startswith("https://")
        assert len(bytes.fromhex(trace.sha256)) == 32
        assert trace.size_bytes > 0
        assert trace.format in ("", *FORMATS)
        if trace.profiles:
            assert FORMATS[trace.format].needs_profiles
            assert TRACES[trace.profiles].format == ""


SHARED = DATA / "cluster"
COPIES = {
    "philly-small": "pollux/traces/philly.csv",
    "tiresias-60": "tiresias/60_job.csv",
    "synergy-100": "synergy/deploy_trace/static_100job_6_3_1100.0",
    "alibaba-openb": "alibaba-openb-2023/openb_pod_list_default.csv",
    "shockwave-throughputs": "shockwave/tacc_throughputs.json",
    "gavel-96": "gavel/traces/physical_cluster/max_min_fairness.trace",
    "gavel-throughputs": "gavel/simulation_throughputs.json",
    "shockwave-120": "shockwave/traces/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
}


@needs_data(SHARED)
@pytest.mark.parametrize("name", COPIES)
def test_checksums_are_those_of_the_public_files(name: str) -> None:
    content = (SHARED / COPIES[name]).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (
        TRACES[name].size_bytes,
        TRACES[name].sha256,
    )
    assert TRACES[name].file_name == Path(COPIES[name]).name
