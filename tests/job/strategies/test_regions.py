"""The search for tensor-parallel regions."""

from __future__ import annotations

from collections import Counter

import pytest
from captured import task_of

from trainyard.job import transformer
from trainyard.zoo import llama


def test_the_work_grows_with_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search follows the stream of tokens through the layers before its own."""
    num_choices = Counter[int]()
    choice = transformer._choice
    for layers in (2, 3, 4):

        def counted(*given: object, layers: int = layers) -> object:
            num_choices[layers] += 1
            return choice(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(transformer, "_choice", counted)
        model = llama.build(f"llama-{layers}", llama.LlamaConfig(128, 16, layers, 64, 4, 2, 128), 2)
        found = transformer.tensor_parallel_regions(task_of(model).program(2), 2)
        assert len(found) == 2 * layers
    assert num_choices[4] - num_choices[3] == num_choices[3] - num_choices[2]
