"""Files of options for `trainyard train`: what they say, what the command line changes, what is refused or written."""

import pytest
import yaml

from trainyard.cli import main as cli

FILE = """
model: gpt-tiny
steps: 4
lr: 1e-2
betas: [0.9, 0.95]
warmup-steps: 1
stall: 30min
max_checkpoint_size: 2.5GB
resume: no
strategies: null
"""


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """What ``--print-config`` prints for a file and a command line."""
    monkeypatch.chdir(tmp_path)

    def print_config(text, *arguments):
        (tmp_path / "run.yaml").write_text(text)
        assert cli.main(["train", *arguments, "--config=run.yaml", "--print-config"]) == 0
        return capsys.readouterr().out

    return print_config


def test_a_file_says_options_and_the_rest_is_usual(printed):
    found = yaml.safe_load(printed(FILE))
    assert found["model"] == "gpt-tiny"
    assert (found["steps"], found["lr"], found["betas"], found["warmup_steps"]) == (4, 0.01, [0.9, 0.95], 1)
    assert (found["stall"], found["max_checkpoint_size"], found["resume"]) == ("30min", "2500MB", False)
    assert (found["strategies"], found["seed"], found["checkpoint"]) == ("auto", 0, None)


def test_what_is_printed_can_be_given_back(printed):
    whole = printed(FILE)
    assert printed(whole) == whole
    sgd = printed(FILE.replace("betas: [0.9, 0.95]", "optimizer: sgd\nmomentum: 0.5"))
    assert printed(sgd) == sgd
    assert "betas" not in yaml.safe_load(sgd)
    lists = printed(f"{FILE}no_decay: [1d, '**.bias']\nlr_scale: head.**=10,tail=2\nlog_to: [csv]\n")
    assert printed(lists) == lists
    read = yaml.safe_load(lists)
    assert read["no_decay"] == ["1d", "**.bias"]
    assert (read["lr_scale"], read["log_to"]) == (["head.**=10", "tail=2"], ["csv"])
    never = printed("model: examples/own.py\nstall: never\ncheckpoint: a folder\n")
    assert printed(never) == never


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--steps", "9"], {"steps": 9}),
        (["--steps=9", "--lr=0.5"], {"steps": 9, "lr": 0.5}),
        (["--betas", "0.5", "0.6"], {"betas": [0.5, 0.6]}),
        (["--warmup-steps", "0"], {"warmup_steps": 0}),
        (["gpt2"], {"model": "gpt2"}),
        (["--betas", "0.5", "0.6", "gpt2", "--seed=3"], {"betas": [0.5, 0.6], "model": "gpt2", "seed": 3}),
    ],
)
def test_the_command_line_takes_precedence(printed, arguments, changed):
    assert yaml.safe_load(printed(FILE, *arguments)) == yaml.safe_load(printed(FILE)) | changed


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ([], {}),
        (["--no-profile"], {"profile": False}),
        (["--no-profile", "--profile"], {}),
        (["--profile", "--no_profile", "--lr=0.5"], {"profile": False, "lr": 0.5}),
        (["--no-resume"], {}),
    ],
)
def test_a_flag_of_a_file_is_unset_on_the_command_line(printed, arguments, changed):
    text = "model: gpt-tiny\nprofile: true\nresume: no\n"
    assert yaml.safe_load(printed(text, *arguments)) == yaml.safe_load(printed(text)) | changed


def test_only_what_a_file_may_set_can_be_unset(capsys):
    assert cli.main(["train", "gpt-tiny", "--no-json"]) == 2
    assert cli.main(["hardware", "--no-measure"]) == 2
    assert cli.main(["train", "--help"]) == 0
    said = capsys.readouterr().out
    assert "  --profile, --no-profile\n" in said
    assert "  --resume, --no-resume   Continue the run" in said
    assert "--no-json" not in said
    assert "--no-print-config" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: 1\nwarmup_step: 3", "run.yaml, line 2, field 'warmup_step': there is no such option; the nearest name"),
        ("json: true", "run.yaml, line 1, field 'json': there is no such option; there are model, processes,"),
        ("print_config: true", "field 'print_config': there is no such option"),
        ("lr: fast", "run.yaml, line 1, field 'lr': --lr: 'fast' is not a number; give one"),
        ("seed: 1\nlr: -1", "run.yaml, line 2, field 'lr': --lr -1.0: allowed is 0 to"),
        ("resume: 3", "field 'resume': got '3', allowed is true or false"),
        ("betas: [1]", "field 'betas': --betas has too few values; give 2"),
        ("device: tpu", "field 'device': --device: 'tpu' is not known; known are 'cpu', 'cuda'"),
        ("dtype: {a: 1}", "field 'dtype': got {'a': '1'}, allowed is a value"),
        ("- lr", "run.yaml: expected a mapping"),
        ("lr: [", "run.yaml, line 2: not YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_file_and_key(text, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    assert cli.main(["train", "gpt-tiny", "--config", "run.yaml"]) == 2
    assert said in capsys.readouterr().err


def test_a_file_without_a_model_leaves_it_to_the_command_line(printed, capsys):
    assert yaml.safe_load(printed("lr: 0.5", "gpt-tiny"))["lr"] == 0.5
    assert cli.main(["train", "--config", "run.yaml"]) == 2
    assert "MODEL" in capsys.readouterr().err
    assert cli.main(["train", "gpt-tiny", "--config", "none.yaml"]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_a_run_writes_the_options_that_it_used(printed, tmp_path):
    text = "model: gpt-tiny\nsteps: 2\nprocesses: 1\nstrategies: data_parallel\ncheckpoint: run\n"
    used = printed(text, "--lr", "0.5")
    assert cli.main(["train", "--config", "run.yaml", "--lr", "0.5"]) == 0
    assert (tmp_path / "run" / "config.yaml").read_text() == used
    assert "lr: 0.5\n" in used
