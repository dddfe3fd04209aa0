"""Train a GPT on the source code of Python's standard library, byte by byte.

    trainyard train examples/gpt_on_python_source.py --steps 60 --warmup-steps 10 --clip-norm 1

`model` says what is trained, `data` what on; how it runs on this machine is for Trainyard to find.
"""

import torch

from trainyard import Model
from trainyard.zoo import TextBatches, gpt, standard_library

ROWS, CONTEXT = 16, 128


def model() -> Model:
    """A GPT of 5 million parameters that reads 128 bytes and predicts the next of each."""
    config = gpt.GPTConfig(vocab=256, context=CONTEXT, layers=6, hidden=256, heads=8, dropout=0.1)
    with torch.device("meta"):  # no memory here: every process makes just its part of the first weights
        return gpt.build("gpt-on-python-source", config, rows=ROWS)


def data(step: int) -> dict:
    """The batch of a step: pieces of the standard library, the same in every process."""
    return TextBatches(standard_library(), ROWS, CONTEXT).batch(step)
