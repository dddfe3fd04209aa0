"""A model of transformers that gives embeddings: one forward pass over whole texts, and the pooling of its folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.linear import pack_linear_layers
from trainyard.serve.run.pooling import Pooling, pool, read_pooling
from trainyard.serve.run.pretrained import load_pretrained, refusing
from trainyard.serve.run.rope import longest_alike

__all__ = ["UNUSED_WEIGHTS", "EmbeddingForm", "EmbeddingModel", "load_embedding_model"]

UNUSED_WEIGHTS = "pooler."
"""Beginning of the names of weights of BERT for another task."""


@dataclass(frozen=True)
class EmbeddingForm:
    """Form of a model's embeddings.

    Attributes
    ----------
    width : numbers of each.
    is_normalized : whether their length is 1.
    smaller : of how many numbers the beginning of an embedding is one, too (Matryoshka embeddings).
    """

    width: int
    is_normalized: bool = False
    smaller: Sequence[int] = ()


class EmbeddingModel:
    """A model that gives embeddings. It was trained to attend to all tokens of a text, or only to those before.

    Parameters
    ----------
    model : of transformers, without a head.
    pooling : how the vectors of tokens become an embedding.

    Attributes
    ----------
    name : of its folder, or of its class.
    context : the longest text that it was made for, in tokens.
    vocabulary : number of tokens that it knows.
    form : what its embeddings are.

    Raises
    ------
    ServeError
        If it is no such model.
    """

    def __init__(self, model: PreTrainedModel, pooling: Pooling, name: str = "") -> None:
        self.name = name or type(model).__name__
        config = model.config.get_text_config()
        takes = inspect.signature(model.forward).parameters
        if config.is_encoder_decoder or not {"input_ids", "attention_mask"} <= set(takes):
            raise ServeError(
                f"{self.name} is a {type(model).__name__}; allowed are models of text that are an encoder or a decoder"
            )
        alike = longest_alike(self.name, config)
        self._model, self._pooling = model.eval(), pooling
        self._more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
        self._pad = config.pad_token_id or 0
        self.vocabulary = int(config.vocab_size)
        self.context = min(_num_positions(self.name, model), pooling.max_tokens or 2**31, alike or 2**31)
        self.form = EmbeddingForm(int(config.hidden_size), pooling.is_normalized, _smaller(self.name, config))
        if hasattr(model, "pooler"):
            model.pooler = None  # type: ignore[assignment]
        pack_linear_layers(model)

    def report_progress(self, report: Callable[[], None]) -> None:
        """Call a function whenever a layer is computed."""

        def layer_is_computed(*call: object) -> None:
            report()

        for layers in self._model.modules():
            if isinstance(layers, nn.ModuleList):
                for layer in layers:
                    layer.register_forward_hook(layer_is_computed)

    @torch.inference_mode()
    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Embeddings of texts, which are padded to the longest.

        Parameters
        ----------
        texts : their tokens.

        Returns
        -------
        One for each text, in float32; shape ``(texts, width)``.
        """
        lengths = torch.tensor([len(text) for text in texts])
        ids = nn.utils.rnn.pad_sequence(
            [torch.tensor(text) for text in texts], batch_first=True, padding_value=self._pad
        )
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        hidden = self._model(input_ids=ids, attention_mask=mask, **self._more).last_hidden_state
        return pool(hidden, lengths, self._pooling)


def load_embedding_model(folder: Path, dtype: torch.dtype = torch.float32) -> EmbeddingModel:
    """Read a model in the form of sentence-transformers. No code of the folder runs.

    Raises
    ------
    ServeError
        If the folder has no such model.
    """
    pooling = read_pooling(folder)
    model = load_pretrained(AutoModel, folder, dtype, UNUSED_WEIGHTS)
    with refusing(folder, "cannot be computed"):
        return EmbeddingModel(model, pooling, folder.name)


def _num_positions(name: str, model: PreTrainedModel) -> int:
    """The longest text, in tokens."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if type(most) is not int or most < 1:
        raise ServeError(f"config.json of {name} has no max_position_embeddings; give a model with it")
    paddings = [
        module.padding_idx
        for path, module in model.named_modules()
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding)
    ]
    for padding in paddings:
        if padding is not None:  # as in RoBERTa: positions begin after that of padding
            most -= padding + 1
    return most


def _smaller(name: str, config: Any) -> Sequence[int]:
    """Return the lengths at which the beginning of an embedding is an embedding, by the fields that vLLM reads."""
    given, width = getattr(config, "matryoshka_dimensions", None), int(config.hidden_size)
    if given is None:
        return range(1, width) if getattr(config, "is_matryoshka", False) else ()
    if not isinstance(given, list) or not all(type(each) is int and 1 <= each <= width for each in given):
        raise ServeError(
            f"config.json of {name} has matryoshka_dimensions {shown(given)}; allowed are numbers from 1 to {width}"
        )
    return tuple(sorted(set(given)))
