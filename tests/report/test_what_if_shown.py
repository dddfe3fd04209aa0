"""What-ifs on the command line: the tables, who loses and who gains, and the files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trainyard.cli.main import main

_JOBS = """name,arrival_s,num_devices,length_s,user,account
a,0,2,100,ann,x
b,0,2,60,bob,x
c,0,1,30,cat,y
d,0,2,400,ann,y
"""


def simulated(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str, cluster: str = "2x2"
) -> list[str]:
    """The lines that the command prints."""
    trace = folder / "jobs.csv"
    trace.write_text(_JOBS)
    assert main(("fleet", "simulate", "--trace", str(trace), "--cluster", cluster, *options)) == 0
    return capsys.readouterr().out.splitlines()


def rows_after(lines: list[str], heading: str) -> list[list[str]]:
    """Cells of the rows of a table; the heading is how the line of its columns or its title begins."""
    (first, *_) = (i for i, line in enumerate(lines) if line.strip().startswith(heading))
    rule = next(i for i in range(first, len(lines)) if "───" in lines[i])
    rows = []
    for line in lines[rule + 1 :]:
        if not line.strip():
            break
        rows.append([cell.strip() for cell in line.strip().split("  ") if cell.strip()])
    return rows


def test_rows_are_beside_the_present(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = simulated(tmp_path, capsys, "--what-if", "+1x2; limit=50s", "--what-if", "-1x2")
    times = [row[:3] for row in rows_after(lines, "jobs.csv on 2x2")]
    # Ends are 100, 60, 90 and 490 s; 100, 60, 30 and 430 s; 50, 50, 80 and 100 s; and 100, 160, 190 and 590 s.
    assert [row[:3] for row in times] == [
        ["fifo, +1x2", "2.6 min", "0.84x"],
        ["fifo", "3.1 min", "1.00x"],
        ["fifo, -1x2", "4.3 min", "1.41x"],
        ["fifo, limit=50s", "70.0 s", "0.89x"],
    ]
    devices = {row[0]: (row[2], row[-1]) for row in rows_after(lines, "policy            placement")}
    assert devices == {
        "fifo, +1x2": ("6", "0"),
        "fifo": ("4", "0"),
        "fifo, -1x2": ("2", "0"),
        "fifo, limit=50s": ("4", "3"),
    }


def test_who_loses_and_who_gains_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = simulated(tmp_path, capsys, "--what-if", "+1x2; limit=50s; -1x2")
    lose, gain = rows_after(lines, "who loses most"), rows_after(lines, "who gains most")
    # Jobs that are killed are a loss, also where nothing else is known of a group.
    assert [row for row in lose if row[0] == "fifo, limit=50s"] == [
        ["fifo, limit=50s", "user ann", "0", "2"],
        ["fifo, limit=50s", "user bob", "0", "1"],
        ["fifo, limit=50s", "account x", "0", "2"],
        ["fifo, limit=50s", "devices 2", "0", "3"],
    ]
    assert ["fifo, -1x2", "user bob", "1", "0", "2.67x"] in [row[:5] for row in lose]
    assert next(row[:4] for row in gain if row[0] == "fifo, +1x2") == ["fifo, +1x2", "user cat", "1", "0.33x"]
    assert not [row for row in gain if row[1] == "user ann" and "limit" in row[0]]
    assert "who gains most" not in "\n".join(simulated(tmp_path, capsys, "--policy", "fifo,srtf"))


def test_files_have_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, table = tmp_path / "page.html", tmp_path / "jobs.csv.csv"
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("cluster: 2x2xV100\nprices: {V100: 3.6, H100: 7.2}\n")
    options = (
        "--what-if",
        "+1x2xH100; limit=50s",
        "--speed",
        "H100=2",
        "--html",
        str(page),
        "--csv",
        str(table),
        "--json",
    )
    document = json.loads("\n".join(simulated(tmp_path, capsys, *options, cluster=str(cluster))))
    assert document["baseline"] == "fifo"
    runs = {run["what_if"]: run for run in document["runs"]}
    assert {name: (run["policy"], run["num_devices"], run["num_killed"]) for name, run in runs.items()} == {
        "": ("fifo", 4, 0),
        "+1x2xH100": ("fifo, +1x2xH100", 6, 0),
        "limit=50s": ("fifo, limit=50s", 4, 3),
    }
    # Killed after 50 s: three jobs of two devices, and one of one device for 30 s.
    assert runs["limit=50s"]["used_cost"] == pytest.approx(330 * 0.001)
    assert runs["limit=50s"]["cluster_cost"] == pytest.approx(100 * 4 * 0.001)
    states = dict(zip(runs["limit=50s"]["jobs"]["name"], runs["limit=50s"]["jobs"]["state"], strict=True))
    assert states == {"a": "killed", "b": "killed", "c": "ended", "d": "killed"}
    with table.open() as file:
        rows = [(row["policy"], row["name"], row["state"]) for row in csv.DictReader(file)]
    assert ("fifo, limit=50s", "a", "killed") in rows
    assert len(rows) == 3 * 4
    shown = page.read_text()
    for text in (
        "Who gains most, fifo / policy",
        "Who loses most, fifo / policy",
        "of the cluster",
        "fifo, +1x2xH100",
    ):
        assert text in shown
    assert "Devices in use, H100" in shown


def test_a_new_type_without_a_speed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(_JOBS)
    options = ("fleet", "simulate", "--trace", str(trace), "--cluster", "2x2xV100", "--what-if", "+1x2xH100")
    assert main(options) == 0
    told = "they are taken to run as fast on H100 as on the devices of the present; if that is not so, give for example"
    assert told in capsys.readouterr().err
    assert main((*options, "--speed", "H100=1")) == 0
    assert told not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--what-if", "faster"),
            "error: what-if 'faster': 'faster' is no change; allowed are nodes such as",
        ),
        (("--what-if", "-3x2"), "error: what-if '-3x2': 3 nodes of 2xdevice are to go"),
        (("--speed", "H100=2"), "error: speed of 'H100': no node has such devices; there are device"),
        (
            ("--speed", "H100"),
            "'H100' is not TYPE=X; give a type of device and a number above 0, such as V100=0.5",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_trace_is_read(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(("fleet", "simulate", "--trace", "no-such.csv", "--cluster", "2x2", *options)) == 2
    assert said in capsys.readouterr().err
