"""`trainyard doctor`: tell which parts of this installation are there, and which verbs need the others."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.distribution import NAME, VERSION, install_command

__all__ = ["Options", "act"]

_VERBS_OF_EXTRA = {
    "daemon": "fleet daemon",
    "postgres": "fleet daemon --state postgresql://...",
    "ray": "fleet run --backend ray",
    "server": "serve run, serve compare",
    "tensorboard": "train --log-to tensorboard",
    "wandb": "train --log-to wandb",
    "kernels": "serve simulate --kernels",
}
_SLURM = ("sbatch", "srun", "squeue", "scancel")
_VLLM_PYTHON = Path(".venv-vllm/bin/python")


@dataclass(frozen=True)
class Options(Common):
    """Tell what is installed, compiled, measured or missing here, and which verbs need it. Nothing is measured."""


@dataclass(frozen=True)
class _Finding:
    """One part of the installation.

    Attributes
    ----------
    part : name, such as ``PyTorch``.
    is_there : whether it can be used.
    found : version or place; of a missing part, what to do.
    verbs : verbs that need it.
    """

    part: str
    is_there: bool
    found: str
    verbs: str


def act(options: Options, screen: Screen) -> Outcome:
    """Look for each part."""
    from trainyard.report.tables import make_table

    with screen.waiting("looking at this installation"):
        found = [_python(), _torch(), _gpus(), *_extras(), _slurm(), _vllm(), _simulator(), *_measured()]
    rows = [("yes" if each.is_there else "no", each.part, each.found, each.verbs) for each in found]
    table = make_table(f"trainyard {VERSION}", ("there", "part", "found, or what to do", "for"), rows, 4)
    return Outcome({"version": VERSION, "parts": [asdict(each) for each in found]}, (table,))


def _python() -> _Finding:
    import platform

    import psutil

    from trainyard.report.units import bytes_text, count_text

    cores = count_text(len(os.sched_getaffinity(0)), "core")
    memory = bytes_text(psutil.virtual_memory().total)
    return _Finding("Python", True, f"{platform.python_version()}, {cores}, {memory} of memory", "all")


def _torch() -> _Finding:
    return _Finding(
        "PyTorch", True, version("torch"), "train, plan, simulate, run, compare, fleet profile, serve"
    )


def _gpus() -> _Finding:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = ", ".join(names) or "none that PyTorch can use; work runs on the CPU"
    return _Finding("GPUs", bool(names), found, "train, run, serve run: --device cuda")


def _extras() -> Iterator[_Finding]:
    """Look for the packages of each extra."""
    try:
        needed = requires(NAME) or []
    except PackageNotFoundError:
        yield _Finding(NAME, False, "used from its sources; nothing says what its extras need", "all")
        return
    for extra, verbs in _VERBS_OF_EXTRA.items():
        marker = re.compile(rf"extra == ['\"]{extra}['\"]")
        names = [re.split(r"[^\w.-]", each)[0] for each in needed if marker.search(each)]
        missing = [name for name in names if not _installed(name)]
        told = ", ".join(f"{name} {_installed(name)}" for name in names)
        if missing:
            told = f"missing {', '.join(missing)}: {install_command(extra)}"
        yield _Finding(f"extra {extra}", not missing, told, verbs)


def _installed(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _slurm() -> _Finding:
    missing = [name for name in _SLURM if shutil.which(name) is None]
    told = f"missing {', '.join(missing)}" if missing else "its commands are on the PATH"
    return _Finding("Slurm", not missing, told, "fleet run --backend slurm")


def _vllm() -> _Finding:
    is_there = _VLLM_PYTHON.exists()
    told = str(_VLLM_PYTHON) if is_there else f"no {_VLLM_PYTHON} here: make vllm"
    return _Finding("vLLM", is_there, told, "serve run --engine vllm")


def _simulator() -> _Finding:
    from trainyard.compiling import is_on_disk
    from trainyard.fleet.mechanism.preempt import assign

    is_there = is_on_disk(assign)
    told = (
        "on disk"
        if is_there
        else "compiled at its first long run, or by: python -m trainyard.fleet.precompile"
    )
    return _Finding("compiled simulator", is_there, told, "fleet simulate, compare, run, daemon")


def _measured() -> Iterator[_Finding]:
    """Look for measurements of this machine."""
    from trainyard.hardware.remembered import cache_folder, measurements_file

    kinds = {"machine": ("rates of this machine", "hardware local"), "ops": ("times of ops", "train")}
    for kind, (what, verb) in kinds.items():
        path = measurements_file(kind)
        told = str(path) if path.exists() else f"none in {cache_folder()}: measured when first needed"
        yield _Finding(what, path.exists(), told, f"{verb}, and plans for `local`")
