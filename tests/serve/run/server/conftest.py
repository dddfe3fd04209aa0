"""A small model with a tokenizer, and servers of it on real ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.run.server.served_api import Servers, save_tiny

from trainyard.serve.run.model_tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> ModelTokenizer:
    return ModelTokenizer(folder)


@pytest.fixture(scope="session")
def servers(folder: Path) -> Iterator[Servers]:
    found = Servers(folder)
    yield found
    found.close()


@pytest.fixture(scope="session")
def url(servers: Servers) -> str:
    return servers.url()
