"""Windows are read off transformers' masks, and masks that are no windows are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import masking_utils as masks

from trainyard.serve.run.attention_window import MaskWindow, UnsupportedMaskError

CPU = torch.device("cpu")
POSITIONS = np.array([0, 1, 5, 6, 7, 8, 13, 14, 1023, 1024, 70_000])


def window_of(sees: object, context: int = 100_000) -> MaskWindow:
    return MaskWindow(sees, context, CPU)  # type: ignore[arg-type]


def test_causal_sliding_and_chunked_masks() -> None:
    no_padding = torch.zeros(1, dtype=torch.int64)
    assert (window_of(masks.causal_mask_function)(POSITIONS) == POSITIONS + 1).all()
    sliding = window_of(masks.sliding_window_causal_mask_function(7))
    assert (sliding(POSITIONS) == np.minimum(POSITIONS + 1, 7)).all()
    chunked = window_of(masks.chunked_causal_mask_function(7, no_padding))
    assert (chunked(POSITIONS) == POSITIONS % 7 + 1).all()
    both = masks.and_masks(
        masks.sliding_window_causal_mask_function(4), masks.chunked_causal_mask_function(7, no_padding)
    )
    assert (window_of(both)(POSITIONS) == np.minimum(POSITIONS % 7 + 1, 4)).all()


def test_a_window_that_bounds_nothing_is_known() -> None:
    assert window_of(masks.causal_mask_function).is_unbounded
    assert window_of(masks.sliding_window_causal_mask_function(100_000)).is_unbounded
    assert not window_of(masks.sliding_window_causal_mask_function(99_999)).is_unbounded


def test_a_window_of_the_longest_known_context_costs_little() -> None:
    """Positions are looked at as far as they occur."""
    window = window_of(masks.sliding_window_causal_mask_function(8192), 10**12)
    assert window(np.array([10_000])).tolist() == [8192]


@pytest.mark.parametrize(
    "sees",
    [
        masks.bidirectional_mask_function,
        masks.sliding_window_bidirectional_overlay(3),
        masks.or_masks(masks.causal_mask_function, lambda b, h, q, k: (q < 9) & (k < 9)),  # a prefix
        masks.or_masks(
            masks.sliding_window_causal_mask_function(6), lambda b, h, q, k: k == 0
        ),  # and the first
        masks.and_masks(masks.causal_mask_function, lambda b, h, q, k: q != k),
    ],
)
def test_other_masks_are_refused(sees: object) -> None:
    with pytest.raises(UnsupportedMaskError, match="sees other keys than its own token"):
        window_of(sees)


@pytest.mark.parametrize(
    "sees",
    [
        lambda b, h, q, k: (k > 40) | (q < 50) | (q > 60),
        lambda b, h, q, k: (q - k) % 3 == 0,  # gaps, in which the bisection ends anywhere
    ],
)
def test_masks_whose_windows_go_back_are_refused(sees: object) -> None:
    with pytest.raises(UnsupportedMaskError, match="begins before that of the query before it"):
        window_of(masks.and_masks(masks.causal_mask_function, sees))
