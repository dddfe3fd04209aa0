"""Step times of a model on this machine, measured with an engine and fitted by a linear form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from trainyard.serve.catalog import parse_policies
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import StepRecord
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.step_time import LinearStepTime

__all__ = ["measured_step_time"]

Floats = NDArray[np.float64]

_GREEDY = SamplingParams(temperature=0.0)
_LOADS = ((1, 256), (4, 64), (8, 512), (16, 128), (32, 32), (32, 256))
"""Requests at once, and the tokens of a step that prompts may take."""
_OUTPUT_TOKENS = 32
_BLOCK_TOKENS = 16


def measured_step_time(model: CausalModel, longest: int = 512, seed: int = 0) -> LinearStepTime:
    """Measure steps with prompts in chunks and decodes beside them, and fit their seconds.

    What the policy, the cache and sampling take is in it. Relative errors of all steps count alike, and no term is
    negative; of the slowest steps, a twentieth is left out, in which the machine did something else.

    Parameters
    ----------
    longest : tokens of the longest prompt.
    seed : of the prompts.
    """
    rng = np.random.default_rng(seed)
    rows: list[tuple[Floats, float]] = []
    for num, chunk in (_LOADS[0], *_LOADS):  # the first compiles what is compiled
        ((_, policy),) = parse_policies(f"sarathi(chunk_tokens={chunk})")
        steps: list[StepRecord] = []
        lengths = rng.integers(8, longest, num).tolist()
        blocks = sum(-(-(length + _OUTPUT_TOKENS) // _BLOCK_TOKENS) for length in lengths)
        engine = Engine(model, policy, EngineOptions(blocks, _BLOCK_TOKENS), seen=steps.append)
        prompt_tokens = {}
        for place, length in enumerate(lengths):
            ids = tuple(rng.integers(0, model.vocabulary, length).tolist())
            request = Request(str(place), 0.0, length, _OUTPUT_TOKENS, prompt_ids=ids)
            prompt_tokens[engine.add(request, _GREEDY)] = length
        while engine.has_work:
            engine.step()
        rows += _features(steps, prompt_tokens)
    return _fitted(rows[len(rows) // (len(_LOADS) + 1) // 2 :])


def _features(steps: Sequence[StepRecord], prompt_tokens: dict[int, int]) -> list[tuple[Floats, float]]:
    """Return for each step the terms of the linear form, and the seconds up to the next step."""
    found = []
    for step, after in pairwise(steps):
        counts = np.zeros(5)
        counts[0] = 1.0
        for number, start, stop in step.batch.items:
            if start >= prompt_tokens[number]:
                counts[2:4] += 1.0, stop
            else:
                num = stop - start
                counts[1] += num
                counts[4] += num * (start + num / 2)
        found.append((counts, after.start_s - step.start_s))
    return found


def _fitted(rows: Sequence[tuple[Floats, float]]) -> LinearStepTime:
    counts, seconds = np.array([c for c, _ in rows]), np.array([s for _, s in rows])
    kept = np.ones(len(seconds), bool)
    for _ in range(2):
        weights, _ = nnls(counts[kept] / seconds[kept, None], np.ones(int(kept.sum())))
        ratio = seconds / (counts @ weights)
        kept = ratio <= np.quantile(ratio, 0.95)
    return LinearStepTime(*map(float, weights))
