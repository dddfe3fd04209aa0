"""Small models with tokenizers, and servers of it on real ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.run.server.served_api import Servers, save_tiny, save_tiny_encoder

from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_process import EngineSpec
from trainyard.serve.run.model_tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("encoders") / "tiny-encoder")


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> ModelTokenizer:
    return ModelTokenizer(folder)


@pytest.fixture(scope="session")
def servers(folder: Path) -> Iterator[Servers]:
    found = Servers(EngineSpec(folder, "vllm", EngineOptions(num_blocks=600, block_tokens=8)))
    yield found
    found.close()


@pytest.fixture(scope="session")
def url(servers: Servers) -> str:
    return servers.url()
