"""vLLM's own server, in a process of vLLM's environment, with batches that a policy makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainyard.serve.errors import ServeError
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.server.cache_size import block_bytes
from trainyard.serve.run.vllm.portable_policy import portable_policy

__all__ = ["VllmServer", "serve_vllm"]

_SCHEDULER = "trainyard.serve.run.vllm.scheduler.PolicyScheduler"
_POLL_S, _KILL_AFTER_S = 0.2, 10.0


@dataclass(frozen=True)
class VllmServer:
    """How a model is served by vLLM.

    Attributes
    ----------
    python : of the environment with vLLM and Trainyard.
    name : of the model, for requests.
    spec : the model, the policy and the cache.
    host, port : where it listens.
    keys : any of which a request must have; none for everybody.
    drain_s : for requests that run when it is told to stop.
    """

    python: Path
    name: str
    spec: EngineSpec
    host: str
    port: int
    keys: Sequence[str] = ()
    drain_s: float = 30.0

    @property
    def config(self) -> dict[str, Any]:
        """The options of vLLM's server, as it reads them from a file.

        Raises
        ------
        ServeError
            If the policy does not drive vLLM.
        """
        engine = self.spec.options
        assert engine.max_model_len is not None
        _, needs = portable_policy(self.spec.policy, engine.max_model_len)
        num_blocks = engine.num_blocks + 1  # vLLM's block 0 stands for none
        of_block = block_bytes(self.spec.folder, engine.block_tokens, self.spec.dtype)
        return {
            "model": str(self.spec.folder.resolve()),
            "served-model-name": [self.name],
            "host": self.host,
            "port": self.port,
            "dtype": str(self.spec.dtype).removeprefix("torch."),
            "load-format": "safetensors",
            "max-model-len": engine.max_model_len,
            "block-size": engine.block_tokens,
            "num-gpu-blocks-override": num_blocks,
            "kv-cache-memory-bytes": num_blocks * of_block,
            "max-num-seqs": needs.max_requests,
            "max-num-batched-tokens": max(needs.max_batch_tokens, needs.max_requests),
            "async-scheduling": False,
            "scheduler-cls": _SCHEDULER,
            "additional-config": {"trainyard_policy": self.spec.policy},
            "shutdown-timeout": round(self.drain_s),
            "api-key": list(self.keys),
        }


def serve_vllm(server: VllmServer, on_ready: Callable[[str], None]) -> bool:
    """Serve until SIGINT or SIGTERM.

    Parameters
    ----------
    on_ready : is told the address once the model can be asked.

    Returns
    -------
    Whether vLLM ended as it was told to.

    Raises
    ------
    ServeError
        If the policy does not drive vLLM, vLLM is not installed there, or ends by itself.
    """
    config = server.config
    _check_installed(server.python)
    host = f"[{server.host}]" if ":" in server.host else server.host
    address = f"http://{host}:{server.port}"
    # The file has the keys; the folder is readable by its owner alone.
    with tempfile.TemporaryDirectory(prefix="trainyard-vllm-") as folder:
        file = Path(folder) / "vllm.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [str(server.python), "-m", "vllm.entrypoints.openai.api_server", "--config", str(file)]
        process = subprocess.Popen(
            command,
            env=_environment(server.spec.num_threads),
            stdout=sys.stderr,  # its log; our output is a document
            start_new_session=True,
        )
        with _told_to_stop(process) as was_told:
            try:
                while not was_told() and not _is_ready(f"{address}/health"):
                    if process.poll() is not None:
                        break
                    time.sleep(_POLL_S)
                else:
                    if not was_told():
                        on_ready(address)
                    process.wait()
            finally:
                _end(process)
            if not was_told():
                raise ServeError(
                    f"vLLM ended by itself with status {process.returncode}; what it wrote above says why"
                )
    return process.returncode in (0, -signal.SIGTERM)


def _environment(num_threads: int) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))[:num_threads]
    return os.environ | {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "OMP_NUM_THREADS": str(num_threads),
        "HF_HUB_OFFLINE": "1",
    }


def _check_installed(python: Path) -> None:
    find = "from importlib.util import find_spec as f; print(*(n for n in ('vllm', 'trainyard') if not f(n)))"
    try:
        ran = subprocess.run([python, "-c", find], capture_output=True, text=True)
    except OSError as error:
        raise ServeError(
            f"vLLM's environment has no {python}: {error.strerror}; make one: make vllm, or give --vllm-python"
        ) from error
    if ran.returncode or ran.stdout.strip():
        missing = ran.stdout.strip().replace(" ", " and ") or "a Python that runs"
        raise ServeError(f"{python} lacks {missing}; make vLLM's environment: make vllm")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def _told_to_stop(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], bool]]:
    """Hand signals on to vLLM; a second one ends it at once. Gives whether one came."""
    num_told = 0

    def tell(number: int, frame: object) -> None:
        nonlocal num_told
        num_told += 1
        if num_told == 1:
            process.send_signal(signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.SIGKILL)

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: num_told > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """No process of vLLM stays behind."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_AFTER_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
