"""The command line: what it offers, how it reports errors, that its output is what it says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.cli import dispatch
from trainyard.cli import main as cli
from trainyard.cli.option_help import options_of
from trainyard.cli.verbs import VERBS
from trainyard.reading import visible

# Verbs and their flags. A change here is a change of the interface: say so in CHANGELOG.md.
INTERFACE = {
    "train": "MODEL --json --steps --lr --warmup-steps --optimizer --betas --eps --weight-decay --clip-norm "
    "--seed --clip-value --no-decay --lr-scale --lr-schedule --lr-steps --decay-steps --min-lr-factor --ema-decay "
    "--evaluate-every --on-nonfinite --checkpoint --checkpoint-every --resume --max-restarts --stall "
    "--max-checkpoint-size --log-to "
    "--profile --device --processes --strategies --rows --dtype --statistics --momentum --config --print-config",
    "plan": "MODEL --json --cluster --strategies --rows --dtype --show --save --html --statistics --optimizer --momentum",
    "simulate": "PLAN --json --model --cluster --show --html --perfetto --optimizer --momentum",
    "run": "PLAN --json --steps --lr --warmup-steps --optimizer --betas --eps --weight-decay --clip-norm "
    "--seed --clip-value --no-decay --lr-scale --lr-schedule --lr-steps --decay-steps --min-lr-factor --ema-decay "
    "--evaluate-every --on-nonfinite --checkpoint --checkpoint-every --resume --max-restarts --stall "
    "--max-checkpoint-size --log-to "
    "--profile --device --model --momentum",
    "export": "CHECKPOINT --json --to --output --config --ema --max-shard-size",
    "compare": "MODEL --json --cluster --strategies --rows --dtype --html --statistics --optimizer --momentum",
    "hardware": "[CLUSTER] --json --yaml --measure",
    "papers": "[NAME] --json",
    "reproduce": "[NAME] --json --files",
    "doctor": "--json",
    "completion": "{bash,zsh,fish} --json",
    "fleet simulate": "--json --trace --cluster --policy --format --profiles --limit --strict --timezone --placement "
    "--baseline --round --start --restart --failure-every --node-failure-every --node-repair "
    "--checkpoint-every --stragglers --crowding --seed --html --csv --own-files --what-if --speed",
    "fleet compare": "--json --cluster --format --profiles --limit --strict --timezone --placement --baseline "
    "--round --start --restart --failure-every --node-failure-every --node-repair --checkpoint-every "
    "--stragglers --crowding --policy --trace --workload --jobs --load --deadlines --seeds --html --own-files",
    "fleet profile": "MODEL --json --cluster --strategies --rows --dtype --devices --steps --save",
    "fleet download": "[NAME] --json --folder",
    "fleet run": "--json --cluster --folder --policy --backend --placement --round --stall "
    "--max-checkpoint-size --trace --limit --start --restart --measure --html",
    "fleet daemon": "--json --cluster --folder --policy --backend --placement --round --stall --max-checkpoint-size "
    "--idle-limit --state --host --port --token-file --admin-commands --command-folders",
    "fleet submit": "FILE --json --server --token-file",
    "fleet status": "--json --server --token-file --user --state --node --summary --events",
    "fleet cancel": "NAME --json --server --token-file",
    "fleet logs": "NAME --json --server --token-file --lines",
    "serve simulate": "--json --requests --rate --format --limit --time-scale --strict --num --prompt-tokens "
    "--output-tokens --lengths --prefix-tokens --num-prefixes --turns --think-time --burstiness --seed --max-tokens "
    "--ttft --tpot --e2e --model --cluster --kernels --host-time --dtype --tp --pp "
    "--dp --expert-parallel --replicas --cache-blocks --cache-memory --host-cache-memory --block-tokens --max-model-len "
    "--max-loras --lora-rank --chunk --policy --router --baseline --follow --html --csv",
    "serve plan": "MODEL --json --requests --rate --format --limit --time-scale --strict --num --prompt-tokens "
    "--output-tokens --lengths --prefix-tokens --num-prefixes --turns --think-time --burstiness --seed --max-tokens "
    "--ttft --tpot --e2e --cluster --share --policy --router --kernels "
    "--host-time --dtype --block-tokens --max-model-len --html --save",
    "serve place": "MODELS --json --cluster --policy --requests --format --limit --time-scale --strict --num "
    "--burstiness --seed --e2e --dtype --weight-memory --html --save",
    "serve run": "MODELS --json --policy --dtype --device --cache-blocks --cache-memory --host-cache-memory "
    "--block-tokens --max-model-len --threads --chunk --engine --vllm-python --cluster --tp --host --port --api-key "
    "--api-key-file --max-num-queued-reqs --max-num-queued-tokens --max-body --deadline --max-retries --drain "
    "--step-cpu --step-idle --tool-call-parser --reasoning-parser --lora-modules --lora-root --max-cpu-loras "
    "--log-prompts --replicas --router --placement --model-file",
    "serve compare": "FOLDER --json --requests --rate --format --limit --time-scale --strict --num --prompt-tokens "
    "--output-tokens --lengths --prefix-tokens --num-prefixes --turns --think-time --burstiness --seed --max-tokens "
    "--ttft --tpot --e2e --dtype --device --cache-blocks --cache-memory "
    "--host-cache-memory --block-tokens --max-model-len --threads --policy --html",
    "serve bench": "--json --requests --rate --format --limit --time-scale --strict --num --prompt-tokens "
    "--output-tokens --lengths --prefix-tokens --num-prefixes --turns --think-time --burstiness --seed --max-tokens "
    "--ttft --tpot --e2e --url --model --endpoint --api-key "
    "--max-concurrency --timeout --csv",
    "serve download": "[NAME] --json --folder",
}


def run(*arguments, capsys):
    code = cli.main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


def help_of(verb, capsys):
    code, out, _ = run(*verb.split(), "--help", capsys=capsys)
    assert code == 0
    return out


def test_verbs_are_frozen():
    assert list(VERBS) == list(INTERFACE)


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_frozen(verb, capsys):
    listed = re.findall(r"^  (--[a-z0-9-]+|\[?[A-Z]+\]?|{[a-z,]+})(?: |,|$)", help_of(verb, capsys), re.M)
    assert sorted(listed) == sorted(INTERFACE[verb].split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_explained_in_lines_that_fit(verb, capsys):
    options = options_of(VERBS[verb].loaded().Options)
    assert options
    assert [option.flag for option in options if not (option.text or option.choices)] == []
    text = help_of(verb, capsys)
    assert "None" not in text
    assert all(len(line) <= 110 for line in text.splitlines())


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_all_verbs(arguments, capsys):
    code, out, _ = run(*arguments, capsys=capsys)
    assert code == 0
    for name, verb in VERBS.items():
        assert name in out
        assert verb.line in out


@pytest.mark.parametrize("rest", [(), ("--help",), ("-h",), ("help",)])
@pytest.mark.parametrize("level", ["fleet", "serve"])
def test_help_of_a_level_lists_its_acts(level, rest, capsys):
    code, out, _ = run(level, *rest, capsys=capsys)
    assert code == 0
    assert {v for v in VERBS if f"\n  {v} " in out} == {v for v in VERBS if v.startswith(f"{level} ")}


def test_a_level_is_no_verb(capsys):
    code, _, err = run("fleet", "--json", capsys=capsys)
    assert code == 2
    assert json.loads(err)["error"].startswith("fleet needs one of its acts: fleet simulate, ")


def test_version(capsys):
    code, out, _ = run("--version", capsys=capsys)
    assert code == 0
    assert out.startswith("trainyard ")


def test_help_imports_nothing_heavy():
    """Every screen of it in one process, as what one imports is there for good."""
    screens = [["--help"], *([*verb.split(), "--help"] for verb in VERBS)]
    code = (
        f"import sys; from trainyard.cli.main import main\nfor screen in {screens}:\n    main(screen)\n"
        "    heavy = sorted({'torch', 'numba', 'scipy', 'plotly'} & set(sys.modules))\n"
        "    assert not heavy, (screen, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(screens)


def test_importing_the_package_imports_no_torch():
    code = "import trainyard, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_serve_run_refuses_an_unknown_policy_before_it_loads_torch():
    code = (
        "import sys; from trainyard.cli.main import main\n"
        "print(main(['serve', 'run', 'gpt2', '--policy', 'vlm']), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert "error: unknown policy 'vlm'; known: vllm" in done.stderr


def test_unknown_verb_names_the_closest_first(capsys):
    code, out, err = run("simulte", capsys=capsys)
    assert code == 2
    assert out == ""
    assert err.startswith("error: unknown verb 'simulte'; known: simulate, ")
    assert all(verb in err for verb in VERBS)


@pytest.mark.parametrize(
    "command",
    ["simulte", "plan gpt2", "plan gpt2 --cluster nowhere\x1b", "simulate nowhere.yaml", "papers nobody"],
)
def test_with_json_an_error_is_a_document_on_stderr(command, capsys):
    code, out, plain = run(*command.split(" "), capsys=capsys)
    assert (code, out) == (2, "")
    code, out, err = run(*command.split(" "), "--json", capsys=capsys)
    assert (code, out) == (2, "")
    (said,) = json.loads(err).values()
    assert plain == f"error: {visible(said)}\n"
    assert list(json.loads(err)) == ["error"]
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("--dtype bf16", "--dtype bfloat16"),
        ("--dtype=fp16 --json", "--dtype=float16 --json"),
        ("--rows 2 --dtype fp32", "--rows 2 --dtype float32"),
        ("bf16 --save fp16 --dtype", "bf16 --save fp16 --dtype"),
        ("--dtype fp8", "--dtype fp8"),
    ],
)
def test_short_names_of_types_are_those_of_dtype_alone(given, whole):
    assert dispatch._with_whole_dtypes(given.split()) == whole.split()


def test_a_verb_takes_short_names_of_types(capsys):
    _, _, known = run("plan", "gpt2", "--cluster", "nowhere", "--dtype", "bf16", capsys=capsys)
    assert "nowhere" in known
    _, _, unknown = run("plan", "gpt2", "--cluster", "nowhere", "--dtype", "bf17", capsys=capsys)
    assert "bfloat16" in unknown


def test_interrupt_is_one_line(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatch, "_run", interrupted)
    assert run("plan", capsys=capsys) == (130, "", "interrupted\n")


def test_a_defect_is_no_user_error(capsys, monkeypatch):
    def broken(*_):
        raise AssertionError("a defect")

    monkeypatch.setattr(dispatch, "_run", broken)
    with pytest.raises(AssertionError, match="a defect"):
        run("plan", capsys=capsys)


def test_only_this_machine_is_measured(capsys):
    code, _, err = run("hardware", "1x2xV100-16G", "--measure", capsys=capsys)
    assert code == 2
    assert err.startswith(
        "error: --measure measures this machine, and 1x2xV100-16G is not that; leave CLUSTER out"
    )


def test_debugging_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("TRAINYARD_DEBUG", "1")
    code, _, err = run("simulate", "nowhere.yaml", capsys=capsys)
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_messages_of_workers_become_one_line():
    text = "rank 1 failed. It last printed:\nTraceback\n  a\n  b\n  c\nValueError: bad\nGive a folder."
    assert dispatch._one_line(text) == "rank 1 failed. It last printed: ValueError: bad Give a folder."


def test_a_reader_that_stops_early_is_no_error():
    command = f"{Path(sys.executable).parent / 'trainyard'} hardware 2x8xH100 --yaml | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_document_is_alone_on_standard_output_where_a_solver_runs():
    trainyard, jobs = (
        Path(sys.executable).parent / "trainyard",
        Path(__file__).parents[2] / "examples" / "fleet" / "jobs.csv",
    )
    command = [trainyard, "fleet", "simulate", "--trace", jobs, "--cluster", "4x4", "--json"]
    for policy in ("gavel_fifo", "sia"):  # as a process: what compiled code prints goes past Python's output
        done = subprocess.run([*command, "--policy", policy], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["cluster"] == "4x4"


@pytest.mark.parametrize(
    "arguments",
    [
        ("hardware", "2x4xA100-80G"),
        ("papers",),
        ("papers", "zero"),
        ("reproduce",),
        ("reproduce", "zero"),
        ("fleet", "download"),
        ("serve", "download"),
    ],
    ids=" ".join,
)
def test_json_is_one_document_and_text_is_not(arguments, capsys):
    code, out, _ = run(*arguments, "--json", capsys=capsys)
    assert code == 0
    assert isinstance(json.loads(out), dict)
    code, out, _ = run(*arguments, capsys=capsys)
    assert code == 0
    with pytest.raises(json.JSONDecodeError, match=r"Expecting value|Extra data"):
        json.loads(out)
