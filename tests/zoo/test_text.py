"""Text batches: pure functions of the step, made in parts."""

import numpy as np
import pytest
import torch

from trainyard.zoo import TextBatches, standard_library


def test_the_standard_library_is_python_source():
    tokens = standard_library()
    assert tokens.dtype == np.uint8
    assert len(tokens) > 10**6
    assert b"\ndef " in tokens.tobytes()
    assert standard_library() is tokens


def test_targets_are_the_next_tokens_and_parts_make_the_whole():
    batches = TextBatches(np.arange(1000) % 251, rows=6, context=9, seed=4)
    whole = batches.batch(3)
    assert whole["tokens"].shape == (6, 9)
    assert whole["tokens"].dtype == torch.int64
    assert torch.equal(whole["targets"], (whole["tokens"] + 1) % 251)
    parts = [batches.batch(3, 0, 2), batches.batch(3, 2, 3), batches.batch(3, 5)]
    for key, value in whole.items():
        assert torch.equal(torch.cat([p[key] for p in parts]), value)
    assert not torch.equal(batches.batch(4)["tokens"], whole["tokens"])
    assert not torch.equal(TextBatches(batches.tokens, 6, 9, 5).batch(3)["tokens"], whole["tokens"])


def test_the_shortest_text_and_what_is_refused():
    assert TextBatches(np.arange(5), 1, 4).batch(0)["targets"].tolist() == [[1, 2, 3, 4]]
    with pytest.raises(ValueError, match="longer text"):
        TextBatches(np.arange(4), 1, 4)
    with pytest.raises(ValueError, match=r"batch of 1 row$"):
        TextBatches(np.arange(5), 1, 4).batch(0, 1, 1)
