"""Export of a checkpoint of a run to a folder in Hugging Face form, with the same logits as the trained module."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from trainyard.job.plan import Plan, parse_plan
from trainyard.job.planning import load_model
from trainyard.job.run.checkpoint.folders import check_goes_on_as
from trainyard.job.run.checkpoint.same_run import model_identity
from trainyard.job.run.checkpoint.saved import About, read_about
from trainyard.job.run.checkpoint.weights import Weights, read_weights
from trainyard.job.run.export.weight_files import MOST_SHARD_BYTES, write_safetensors
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.serve.errors import ServeError
from trainyard.serve.run.byte_tokenizer import BYTE_END, BYTE_VOCABULARY, byte_end, save_byte_tokenizer
from trainyard.serve.run.pretrained import load_causal_pretrained, refusing
from trainyard.serve.run.random_model import save_zoo_config
from trainyard.serve.run.trained.language_model import (
    TokenLogits,
    language_model,
    recorded_logits,
    require_equal_logits,
)
from trainyard.serve.run.trained.zoo_weights import transformers_weights
from trainyard.user_file import is_file, loaded_file
from trainyard.zoo.decoder import DecoderConfig
from trainyard.zoo.registry import config_of

__all__ = ["TrainedModelFolder", "is_trained_from_file", "save_trained_model"]

_PROBE_TOKENS = 64
_TOKENIZER = "tokenizer"


class TrainedModelFolder(NamedTuple):
    """A folder with the model of a run.

    Attributes
    ----------
    folder : in Hugging Face form.
    note : its step, its model and its tokens, in words.
    """

    folder: Path
    note: str


def is_trained_from_file(about: About) -> bool:
    """Return whether the model of a checkpoint is made by a Python file of the user's own."""
    return is_file(parse_plan(about.plan).model)


def save_trained_model(
    checkpoint: Path,
    folder: Path,
    file: Path | None = None,
    most_shard_bytes: int = MOST_SHARD_BYTES,
    ema: bool = False,
) -> TrainedModelFolder:
    """Save the model of a checkpoint for serving, and see that it computes what the trained module computes.

    Parameters
    ----------
    checkpoint : of a run of a GPT or Llama of the zoo, or of a Python file whose model wraps one of transformers.
    folder : a new one.
    file : the Python file of the model, which is run; None for models of the zoo.
    most_shard_bytes : of a file of weights of a model of the zoo.
    ema : write the moving average of each trained parameter in place of it.

    Raises
    ------
    CheckpointError
        If the checkpoint is damaged, or of another model than the file's.
    WeightsError
        If there is no moving average.
    ServeError
        If the model is no causal language model, or the file is missing.
    """
    about = read_about(checkpoint)
    plan = parse_plan(about.plan)
    if is_file(plan.model) and file is None:
        raise ServeError(
            f"{checkpoint} was trained from {plan.model}, a Python file, which is run to make its model; give "
            f"--model-file {plan.model} if you trust it"
        )
    torch.manual_seed(_seed(about))
    model = load_model(plan.model if file is None else str(file), None if file else plan.num_rows)
    _require_same_model(checkpoint, model, plan)
    _load_weights(model.module, read_weights(checkpoint, ema))
    folder.mkdir(parents=True)
    if file is None:
        tokens, expected = _save_zoo_model(model, plan.model, folder, most_shard_bytes)
    else:
        tokens, expected = _save_language_model(model, plan.model, folder, file)
    del model
    with refusing(folder, "cannot be computed"), torch.no_grad():
        served = load_causal_pretrained(folder, torch.float32).eval()
        logits = served(expected.tokens).logits
    require_equal_logits(logits, expected.logits, f"the module of {plan.model}", "the model to be served")
    return TrainedModelFolder(folder, f"step {about.step} of {plan.model}, {tokens}")


def _seed(about: About) -> int:
    """Return the seed of a run, which was set before its file was loaded."""
    found = about.settings.get("seed")
    return found if type(found) is int else 0


def _require_same_model(checkpoint: Path, model: Model, plan: Plan) -> None:
    task = Task(model, plan.dtype, plan.statistics, plan.num_rows)
    check_goes_on_as(checkpoint, None, model_identity(task))


def _load_weights(module: nn.Module, weights: Weights) -> None:
    """Give a module the parameters and buffers of a run, in the precision in which they are saved.

    A tensor with two names stays one tensor.
    """
    own: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    loaded = dict[int, Tensor]()
    for path, target in own.items():
        if path in weights and id(target) not in loaded:
            value = weights[path]
            is_parameter = isinstance(target, nn.Parameter)
            loaded[id(target)] = nn.Parameter(value, requires_grad=False) if is_parameter else value
    for path, target in own.items():
        if id(target) in loaded:
            owner, _, name = path.rpartition(".")
            setattr(module.get_submodule(owner), name, loaded[id(target)])
        elif isinstance(target, nn.Parameter) or target.is_meta:
            raise ServeError(f"{weights.source} has no {path}; train its model again")


def _save_zoo_model(model: Model, name: str, folder: Path, most_shard_bytes: int) -> tuple[str, TokenLogits]:
    config = config_of(name)
    if isinstance(config, DecoderConfig):
        raise ServeError(
            f"{name} has layers of its own kind, such as experts; of models that were trained, dense ones are served"
        )
    save_zoo_config(name, config, folder)
    vocabulary = int(config.vocab)
    save_byte_tokenizer(folder, vocabulary)
    weights = transformers_weights(config, dict(model.module.named_parameters()))
    num_bytes = {path: tensor.nbytes for path, tensor in weights.items()}
    write_safetensors(folder, num_bytes, weights.__getitem__, most_shard_bytes)
    tokens = torch.arange(min(_PROBE_TOKENS, config.context))[None] * 37 % vocabulary
    with torch.no_grad():
        logits: Tensor = model.module.eval()(tokens)
    return _byte_tokens(vocabulary), TokenLogits(tokens, logits)


def _save_language_model(model: Model, name: str, folder: Path, file: Path) -> tuple[str, TokenLogits]:
    lm = language_model(model.module, name)
    expected = recorded_logits(model, lm, name)
    told = _save_tokenizer(lm, getattr(loaded_file(file), _TOKENIZER, None), name, folder)
    with refusing(folder, "cannot be written"):
        lm.save_pretrained(folder)
    return told, expected


def _save_tokenizer(lm: PreTrainedModel, given: Any, name: str, folder: Path) -> str:
    """Save the tokenizer of a language model, and let its end token end answers; return the tokens in words."""
    vocabulary, source = int(lm.config.get_text_config().vocab_size), lm.name_or_path
    given = given() if callable(given) and not isinstance(given, PreTrainedTokenizerBase) else given
    if given is None and source and (Path(source) / "tokenizer.json").is_file():
        given = source
    if given is None and vocabulary not in (BYTE_END, BYTE_VOCABULARY):
        raise ServeError(
            f"{name} has no tokenizer, and its model knows {vocabulary} tokens, which are not bytes; define "
            f"`{_TOKENIZER}` in the file: a tokenizer of transformers, or the path of its folder"
        )
    if given is None:
        save_byte_tokenizer(folder, vocabulary)
        _end_with(lm, byte_end(vocabulary))
        return _byte_tokens(vocabulary)
    if not isinstance(given, PreTrainedTokenizerBase):
        with refusing(Path(given), "has no tokenizer"):
            given = AutoTokenizer.from_pretrained(given, trust_remote_code=False, local_files_only=True)
    given.save_pretrained(folder)
    if not source:  # its configuration was written by hand, and has the usual end of its kind
        _end_with(lm, given.eos_token_id)
    return "with the tokenizer of its file"


def _end_with(lm: PreTrainedModel, token: int | None) -> None:
    """Let a token end answers; None for no token."""
    lm.config.eos_token_id = token
    if lm.generation_config is not None:
        lm.generation_config.eos_token_id = token


def _byte_tokens(vocabulary: int) -> str:
    ends = "" if byte_end(vocabulary) is not None else ", and answers end by their length"
    return f"with one token per byte{ends}"
