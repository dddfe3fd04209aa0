"""`trainyard doctor` tells what is there, and how to install what is missing."""

import json
from importlib import metadata

import pytest

from trainyard.cli import doctor
from trainyard.cli import main as cli


def parts(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    return {each["part"]: each for each in json.loads(capsys.readouterr().out)["parts"]}


def test_versions_are_those_that_are_installed(capsys):
    found = parts(capsys)
    assert found["PyTorch"]["found"] == metadata.version("torch")
    assert f"uvicorn {metadata.version('uvicorn')}" in found["extra daemon"]["found"]
    assert found["extra server"]["is_there"]


def test_a_missing_package_names_its_extra_and_its_verbs(monkeypatch, capsys):
    known = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda name: "" if name == "llguidance" else known(name))
    found = parts(capsys)["extra server"]
    assert not found["is_there"]
    assert found["found"] == "missing llguidance: pip install 'trainyard-ml[server]'"
    assert "serve run" in found["verbs"]


def test_every_extra_for_users_is_looked_for():
    extras = set(metadata.metadata("trainyard-ml").get_all("Provides-Extra"))
    assert set(doctor._VERBS_OF_EXTRA) == extras - {"dev"}


@pytest.mark.parametrize("there", [True, False])
def test_measurements(there, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    if there:
        from trainyard.hardware.remembered import measurements_file

        measurements_file("ops").write_text("{}")
    assert parts(capsys)["times of ops"]["is_there"] is there


@pytest.mark.parametrize("kept", [True, False])
def test_the_compiled_simulator(kept, monkeypatch, capsys):
    monkeypatch.setattr("trainyard.compiling.is_on_disk", lambda function: kept)
    found = parts(capsys)["compiled simulator"]
    assert found["is_there"] is kept
    assert ("trainyard.fleet.precompile" in found["found"]) is not kept
