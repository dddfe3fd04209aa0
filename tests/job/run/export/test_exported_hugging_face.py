"""A model of transformers that was trained is loaded by from_pretrained, and gives the same outputs."""

import json

import pytest
import torch
import whole_module
from made_plan import made_plan
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.checkpoint.saved import newest_complete, read_run, write_run
from trainyard.job.run.checkpoint.weights import load_weights, read_weights
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import WeightsError
from trainyard.job.run.export.hugging_face import export_hugging_face
from trainyard.job.run.export.weight_files import read_state_dict
from trainyard.job.run.step.data import FunctionData
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.model import Model

VOCABULARY, LENGTH, ROWS, STEPS = 31, 8, 4, 5
GPT2 = GPT2Config(
    vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
LLAMA = LlamaConfig(
    vocab_size=VOCABULARY, max_position_embeddings=16, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
TOKENS = torch.arange(LENGTH)[None] * 7 % VOCABULARY


class Wrapped(nn.Module):
    def __init__(self, lm, beside=False):
        super().__init__()
        self.lm = lm
        if beside:
            self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        return self.lm(tokens, use_cache=False).logits * getattr(self, "scale", 1.0)


def _loss(module, batch):
    logits = module(batch["tokens"])
    logits = getattr(logits, "logits", logits)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def _batch(step):
    drawn = torch.Generator().manual_seed(step)
    return {"tokens": torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=drawn)}


def _trained(module, folder, steps=STEPS):
    """Train a module; it has its trained weights afterwards."""
    model = Model("mine", module, _loss, _batch(0))
    plan = made_plan(Task(model).program(ROWS), ROWS, make_schedule("one_f_one_b", 1, 1))
    config = TrainConfig(steps, OptimizerConfig(lr=0.01, ema_decay=0.5), checkpoint=folder)
    whole_module.train_here(model, plan, FunctionData(_batch), config)
    load_weights(module, folder)
    return module.eval()


def _logits(module):
    with torch.no_grad():
        found = module(TOKENS)
    return getattr(found, "logits", found)


def _built(of_class, config):
    torch.manual_seed(0)
    return of_class(config)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wrapped(_built(GPT2LMHeadModel, GPT2)),
        pytest.param(lambda: _built(LlamaForCausalLM, LLAMA), marks=pytest.mark.slow),
    ],
    ids=["wrapped GPT-2, tied", "Llama"],
)
def test_from_pretrained_loads_what_was_trained(make, tmp_path):
    first = _logits(make())
    trained = _trained(make(), tmp_path / "run")
    files = export_hugging_face(read_state_dict(tmp_path / "run"), tmp_path / "out", most_shard_bytes=10_000)
    assert len(files) > 1
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(_logits(found), _logits(trained))
    assert (_logits(found) - first).abs().max() > 1e-2
    assert "model.safetensors.index.json" in {each.name for each in (tmp_path / "out").iterdir()}
    export_hugging_face(read_state_dict(tmp_path / "run", ema=True), tmp_path / "average")
    load_weights(trained, read_weights(tmp_path / "run", ema=True))
    average = AutoModelForCausalLM.from_pretrained(tmp_path / "average").eval()
    assert torch.equal(_logits(average), _logits(trained))
    assert not torch.equal(_logits(average), _logits(found))


def test_a_configuration_can_be_given(tmp_path):
    trained = _trained(_built(GPT2LMHeadModel, GPT2), tmp_path / "run", 1)
    checkpoint = newest_complete(tmp_path / "run")
    described = read_run(checkpoint)
    described["module"]["transformers_config"] = None
    write_run(checkpoint, described)
    with pytest.raises(
        WeightsError, match=r"is no model of transformers, and wraps none.* give --config FOLDER"
    ):
        export_hugging_face(read_state_dict(checkpoint), tmp_path / "out")
    GPT2.save_pretrained(tmp_path / "config")
    (file,) = export_hugging_face(read_state_dict(checkpoint), tmp_path / "out", tmp_path / "config")
    assert "lm_head.weight" not in load_file(file)  # tied
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(_logits(found), _logits(trained))


REFUSED = (
    ({"n_embd": 8}, "size mismatch|is not of this configuration"),
    ({"n_layer": 3}, "has no transformer.h.2"),
    ({"model_type": "no-such"}, "cannot build the model of .* give --config FOLDER"),
)


def test_another_configuration_is_refused(tmp_path):
    _trained(_built(GPT2LMHeadModel, GPT2), tmp_path / "run", 1)
    (tmp_path / "config").mkdir()
    for change, message in REFUSED:
        (tmp_path / "config" / "config.json").write_text(json.dumps(GPT2.to_dict() | change))
        with pytest.raises(WeightsError, match=message):
            export_hugging_face(read_state_dict(tmp_path / "run"), tmp_path / "out", tmp_path / "config")
        assert not (tmp_path / "out").exists()


def test_weights_beside_the_language_model_are_refused(tmp_path):
    _trained(Wrapped(_built(GPT2LMHeadModel, GPT2), beside=True), tmp_path / "run", 1)
    with pytest.raises(WeightsError, match="has scale beside its model of transformers"):
        export_hugging_face(read_state_dict(tmp_path / "run"), tmp_path / "out")


def test_weights_that_only_transformers_ties_are_refused(tmp_path):
    module = _built(LlamaForCausalLM, LLAMA)
    _trained(module, tmp_path / "run", 1)
    LlamaConfig(**LLAMA.to_dict() | {"tie_word_embeddings": True}).save_pretrained(tmp_path / "config")
    with pytest.raises(WeightsError, match=r"ties lm_head.weight to another weight, and they differ"):
        export_hugging_face(read_state_dict(tmp_path / "run"), tmp_path / "out", tmp_path / "config")
