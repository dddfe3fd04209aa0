"""Which checkpoints a folder holds; who only asks that does not have to wait for PyTorch."""

from __future__ import annotations

from pathlib import Path

ABOUT = "run.json"
"""File that a checkpoint gets last."""


def complete_steps(folder: Path) -> list[int]:
    """Steps of which a folder holds a complete checkpoint, newest first."""
    found = [p.name.removeprefix("step-") for p in folder.glob("step-*") if (p / ABOUT).is_file()]
    return sorted((int(name) for name in found if name.isdigit()), reverse=True)


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"
