"""An engine that computes nothing, and takes the time of another model on other hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.catalog import parse_policies
from trainyard.serve.deploy import served_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.engine_process import warm_up
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.simulated_model import SimulatedModel

__all__ = ["SimulatedEngineSpec"]

_ANSWER = " This answer is simulated."


@dataclass(frozen=True)
class SimulatedEngineSpec:
    """A model, policy and hardware, of which a process makes a simulated engine.

    Attributes
    ----------
    folder : with the tokenizer.
    policy : as `parse_policies` reads it; one policy.
    options : cache and limits.
    model : its name in the zoo, or a Hugging Face ``config.json`` or its folder.
    cluster : as text; its first devices serve the model.
    tensor_parallel : of these devices, how many share each layer.
    pipeline_stages : parts of the model in sequence. One batch after the other goes through all of them.
    dtype : type of the weights there.
    """

    folder: Path
    policy: str
    options: EngineOptions
    model: str
    cluster: str
    tensor_parallel: int = 1
    pipeline_stages: int = 1
    dtype: str = "bfloat16"

    def make_engine(self) -> Engine:
        """Work out how long steps take, and make the engine."""
        tokenizer = ModelTokenizer(self.folder)
        served = served_model(
            self.model,
            parse_cluster(self.cluster),
            tensor_parallel=self.tensor_parallel,
            pipeline_stages=self.pipeline_stages,
            dtype=self.dtype,
            block_tokens=self.options.block_tokens,
        )
        answer = tokenizer.encode(_ANSWER, add_special_tokens=False)
        model = SimulatedModel(self.model, served.step_time, served.context, tokenizer.vocabulary, answer)
        ((_, policy),) = parse_policies(self.policy)
        warm_up(Engine(model, policy, replace(self.options, num_blocks=64, max_model_len=None)))
        return Engine(model, policy, self.options)
