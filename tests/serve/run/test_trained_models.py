"""What was trained is what is served: tokens and logits of the trained module's own forward pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.run.trained_runs import FILE, LLAMA, greedy_tokens, trained, trained_module
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainyard.cli.main import main
from trainyard.job.run.checkpoint.saved import checkpoint_in
from trainyard.job.run.errors import CheckpointError
from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.byte_tokenizer import save_byte_tokenizer
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.pretrained import load_causal_pretrained
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.trained.export import save_trained_model

PROMPT, NUM = (97, 98, 10, 32, 65), 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("trained")
    (found / "llama").mkdir()
    (found / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (found / "wrapped.py").write_text(FILE)
    return found


def spec_of(folder: Path, name: str) -> str:
    return {"llama": str(folder / "llama" / "config.json"), "file": str(folder / "wrapped.py")}.get(
        name, name
    )


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, folder: Path) -> Path:
    return trained(spec_of(folder, request.param), folder / f"run-{request.param}")


def served_tokens(folder: Path) -> list[int]:
    ((_, policy),) = parse_policies("sarathi(chunk_tokens=4)")
    engine = Engine(load_causal_model(folder), policy, EngineOptions(num_blocks=8, block_tokens=8))
    engine.add(Request("a", 0.0, len(PROMPT), NUM, prompt_ids=PROMPT), SamplingParams(temperature=0.0))
    found = []
    while engine.has_work:
        found += [out.token for out in engine.step() if isinstance(out, NewToken)]
    return found


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [("gpt-tiny", "gpt-tiny"), ("llama", "llama"), ("file", "file")],
    indirect=["checkpoint"],
)
def test_tokens_and_logits_are_those_of_the_trained_module(checkpoint, name, folder, tmp_path):
    spec = spec_of(folder, name)
    file = Path(spec) if name == "file" else None
    found = save_trained_model(checkpoint_in(checkpoint.parent), tmp_path / "served", file)
    assert f"step 2 of {spec}, with one token per byte" in found.note
    module = trained_module(spec, checkpoint)
    assert served_tokens(found.folder) == greedy_tokens(module, PROMPT, NUM)
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        own = module(tokens)
        served = load_causal_pretrained(found.folder, torch.float32).eval()(tokens).logits
    torch.testing.assert_close(served, own, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_file_may_have_a_tokenizer(tmp_path):
    """The end of answers is that of the tokenizer, not the usual one of the kind of model."""
    tokens = {"a": 0, "b": 1, "the": 2, "<end>": 3}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(tmp_path / "words")
    sizes = "vocab_size=150, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2"
    of_llama = f"LlamaForCausalLM(LlamaConfig({sizes}))"
    text = FILE.replace("GPT2Config, GPT2LMHeadModel", "LlamaConfig, LlamaForCausalLM")
    start = text.index("GPT2LMHeadModel(")
    text = text[:start] + of_llama + text[text.index("\n", start) :]
    file = tmp_path / "own.py"
    file.write_text(f"{text}\ntokenizer = {str(tmp_path / 'words')!r}\n")
    found = save_trained_model(trained(str(file), tmp_path / "run"), tmp_path / "served", file)
    assert found.note.endswith("with the tokenizer of its file")
    served = ModelTokenizer(found.folder)
    assert served.encode("the b") == (2, 1)
    assert served.stop_token_ids == {3}


def test_bytes_are_tokens_as_they_were_in_the_training(tmp_path):
    whole = ModelTokenizer(save_byte_tokenizer(tmp_path / "whole", 256))
    text = "def f():\n\tgrün"
    assert whole.encode(text) == tuple(text.encode())
    assert whole.decode(whole.encode(text)) == text
    assert whole.stop_token_ids == frozenset()
    with pytest.raises(ServeError, match="forms of answers cannot be used"):
        whole.structured_outputs  # noqa: B018  # nothing would end an answer
    ascii_only = ModelTokenizer(save_byte_tokenizer(tmp_path / "ascii", 128))
    assert ascii_only.encode(text) == tuple(min(byte, 127) for byte in text.encode())


@pytest.mark.parametrize("checkpoint", ["file"], indirect=True)
def test_another_model_than_the_trained_one_is_refused(checkpoint, folder, tmp_path):
    def refused(text: str, error: type[Exception], match: str) -> None:
        file = tmp_path / "wrapped.py"
        file.write_text(text)
        with pytest.raises(error, match=match):
            save_trained_model(checkpoint, tmp_path / "served", file)

    refused(FILE.replace("n_head=4", "n_head=2"), CheckpointError, "a step computes something else")
    refused(FILE.replace("n_layer=2", "n_layer=1"), CheckpointError, "this model has no lm.transformer.h.1")
    with pytest.raises(ServeError, match="which is run to make its model; give --model-file"):
        save_trained_model(checkpoint, tmp_path / "served")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("use_cache=False).logits", "use_cache=False).logits * 2", "differ by up to"),
        ("self.lm(tokens", "self.lm(tokens + 1", "other tokens than it is given"),
        pytest.param(
            *("vocab_size=257", "vocab_size=270", "define `tokenizer` in the file"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_wrapper_that_computes_something_else_is_refused(folder, tmp_path, before, after, says):
    file = tmp_path / "own.py"
    file.write_text(FILE.replace(before, after))
    checkpoint = trained(str(file), tmp_path / "run")
    with pytest.raises(ServeError, match=says):
        save_trained_model(checkpoint, tmp_path / "served", file)


@pytest.mark.slow
def test_a_language_model_with_two_names_is_one(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(FILE.replace("self.lm = GPT2LMHeadModel", "self.other = self.lm = GPT2LMHeadModel"))
    checkpoint = trained(str(file), tmp_path / "run")
    served = save_trained_model(checkpoint, tmp_path / "served", file).folder
    assert served_tokens(served) == greedy_tokens(trained_module(str(file), checkpoint), PROMPT, NUM)


def test_a_model_that_is_no_language_model_is_refused(tmp_path):
    file = tmp_path / "line.py"
    file.write_text(
        "import torch\nfrom torch import nn\n"
        "def model():\n"
        "    batch = {'tokens': torch.zeros(4, 3, dtype=torch.int64)}\n"
        "    return nn.Embedding(128, 2), lambda m, b: m(b['tokens']).square().mean(), batch\n"
    )
    checkpoint = trained(str(file), tmp_path / "run")
    with pytest.raises(ServeError, match="is no causal language model of transformers and has none"):
        save_trained_model(checkpoint, tmp_path / "served", file)


@pytest.mark.parametrize("checkpoint", ["gpt-tiny"], indirect=True)
def test_the_command_refuses_before_anything_starts(checkpoint, folder, capsys, tmp_path):
    assert main(["serve", "run", str(checkpoint), "--model-file", "own.py"]) == 2
    assert "no model given was trained from a Python file" in capsys.readouterr().err
    damaged = tmp_path / checkpoint.name
    damaged.mkdir()
    for path in checkpoint.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (file,) = damaged.glob("*.safetensors")
    tensors = load_file(file)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, file)
    assert main(["serve", "run", str(damaged)]) == 2
    assert "is damaged" in capsys.readouterr().err
