"""The script of `trainyard completion` in real shells, where they are installed."""

import shutil
import subprocess

import pytest

from trainyard.cli import main as cli

CASES = {
    "tr": {"train"},
    "fleet s": {"simulate", "submit", "status"},
    "train --dt": {"--dtype"},
    "train --dtype ": {"float32", "bfloat16", "float16"},
    "plan gpt2-": {"gpt2-medium", "gpt2-large", "gpt2-xl"},
    "fleet compare --policy tire": {"tiresias"},
    "serve simulate --policy sar": {"sarathi"},
    "serve simulate --policy alp": set(),
    "serve place --policy alp": {"alpaserve"},
    "fleet simulate --placement p": {"packed"},
    "papers hiv": {"hived"},
    "serve run --lora-m": {"--lora-modules"},
}


@pytest.fixture
def script(request, tmp_path, capsys):
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: it is not on the PATH")
    assert cli.main(["completion", shell]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


def in_shell(shell, text):
    done = subprocess.run([shell, "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes(script):
    lines = ["source " + str(script)]
    for given in CASES:
        words = given.split(" ")
        lines.append(
            f"COMP_WORDS=(trainyard {given}); COMP_CWORD={len(words)}; _trainyard; echo ${{COMPREPLY[@]}}"
        )
    found = in_shell("bash", "\n".join(lines)).splitlines()
    assert [set(line.split()) for line in found] == list(CASES.values())


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_leaves_files_to_the_shell(script):
    words = "COMP_WORDS=(trainyard fleet simulate --trace x); COMP_CWORD=4"
    assert in_shell("bash", f"source {script}; {words}; _trainyard; echo ${{#COMPREPLY[@]}}") == "0\n"


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes(script, tmp_path):
    for given, expected in CASES.items():
        found = in_shell("fish", f"cd {tmp_path}; source {script}; complete -C'trainyard {given}'")
        assert expected <= {line.split("\t")[0] for line in found.splitlines()}


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_reads_the_script(script):
    assert "_trainyard" in in_shell(
        "zsh", f"autoload -U compinit; compinit -u; source {script}; echo $_comps[trainyard]"
    )
