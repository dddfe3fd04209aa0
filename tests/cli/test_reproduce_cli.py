"""`trainyard papers` and `trainyard reproduce` over all levels."""

import json

import pytest

from trainyard.cli import main as cli
from trainyard.published import Files, PaperTable, Row
from trainyard.report import systems


def printed(capsys, *arguments: str) -> str:
    assert cli.main(arguments) == 0
    return capsys.readouterr().out


def test_papers_lists_all_levels(capsys) -> None:
    systems = json.loads(printed(capsys, "papers", "--json"))["systems"]
    levels = {system["name"]: system["level"] for system in systems}
    assert (levels["zero"], levels["tiresias"], levels["vllm"]) == (1, 2, 3)


def test_a_policy_is_told_about(capsys) -> None:
    out = printed(capsys, "papers", "tiresias")
    assert "2, many jobs on one cluster" in out
    assert "tiresias(promote_knob=1.0)" in out
    assert "frozenset" not in out


def test_numbers_of_a_serving_system_stand_beside_ours(capsys) -> None:
    table = json.loads(printed(capsys, "reproduce", "nexus", "--json"))["tables"][0]
    assert [(row["label"], row["theirs"]) for row in table["rows"]] == [
        ("model A", 160),
        ("model B", 128),
        ("model C", 128),
    ]
    out = printed(capsys, "reproduce", "nexus")
    assert "153.85" in out
    assert "git clone https://github.com/uwsampl/nexus && trainyard reproduce nexus --files nexus/" in out


@pytest.mark.slow
@pytest.mark.long
def test_a_table_without_its_files_says_how_to_fetch_them(capsys) -> None:
    out = printed(capsys, "reproduce", "edf")
    assert "2 s every 4 s" in out
    assert "git clone" in out
    assert "trainyard reproduce edf --files ElasticFlow/ElasticFlow" in out
    first, second = json.loads(printed(capsys, "reproduce", "edf", "--json"))["tables"]
    assert first["rows"]
    assert not second["rows"]
    assert "git clone" in second["fetch"]


def test_a_folder_without_the_files_is_refused(capsys, tmp_path) -> None:
    assert cli.main(("reproduce", "edf", "--files", str(tmp_path))) == 2
    assert f"error: {tmp_path} has no traces_for_ElasticFlow" in capsys.readouterr().err


def test_files_of_a_system_may_come_from_two_places(capsys, tmp_path, monkeypatch) -> None:
    """The tables whose files are elsewhere say how to get them."""
    here, elsewhere = (
        PaperTable(
            name, "s", "by hand", lambda _: [Row("all", 1.0, 1.0)], files=Files((name,), f"get {name}", "x")
        )
        for name in ("here", "elsewhere")
    )
    monkeypatch.setattr(systems.Level, "tables", lambda *_: (here, elsewhere))
    (tmp_path / "here").touch()
    out = printed(capsys, "reproduce", "edf", "--files", str(tmp_path))
    assert "by hand" in out
    assert "get elsewhere && trainyard reproduce edf --files x" in out
    assert "get here" not in out
