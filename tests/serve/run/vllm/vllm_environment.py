"""Where vLLM is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[4]
SOURCE = _ROOT / "src"


def vllm_python() -> Path:
    """Python of the environment with vLLM; the test is skipped where there is none."""
    python = _ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs vLLM: make vllm")
    return python
