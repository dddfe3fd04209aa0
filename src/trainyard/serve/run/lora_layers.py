"""Linear layers with adapters: the product with the weight is computed once for all tokens of a step, and each adapter
adds its own to the rows of its requests.

References
----------
.. [1] Chen et al., "Punica: Multi-Tenant LoRA Serving", MLSys 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.linear import PackedLinear
from trainyard.serve.run.lora_adapter import LoraUpdate

__all__ = ["LoraLayers"]


@dataclass
class _StepRows:
    """Rows of the present step, by adapter; shape of each ``(rows,)``."""

    by_adapter: Mapping[str, Tensor] = field(default_factory=dict)


class _LoraLinear(nn.Module):
    """A linear layer with updates by adapters.

    Attributes
    ----------
    base : the layer without.
    updates : by adapter.
    """

    def __init__(self, base: nn.Module, rows: _StepRows) -> None:
        super().__init__()
        self.base, self._rows = base, rows
        self.updates: dict[str, LoraUpdate] = {}

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x)
        if not self._rows.by_adapter:
            return found
        inputs, outputs = x.reshape(-1, x.shape[-1]), found.view(-1, found.shape[-1])
        for adapter, rows in self._rows.by_adapter.items():
            update = self.updates.get(adapter)
            if update is None:
                continue
            if len(rows) == len(inputs):
                outputs.addmm_(inputs @ update.down, update.up)
            else:
                outputs.index_add_(0, rows, inputs[rows] @ update.down @ update.up)
        return found


class LoraLayers:
    """The adapters of a model. A layer that none of them changes is as it was.

    Parameters
    ----------
    model : whose layers are replaced while an adapter changes them.
    name : of the model, by which errors call it.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._model, self._name, self._rows = model, name, _StepRows()

    @property
    def names(self) -> Set[str]:
        """Names of the adapters that the layers have."""
        return {name for layer in self._changed().values() for name in layer.updates}

    def use_rows(self, rows: Mapping[str, Tensor]) -> None:
        """Let steps from now on have these rows of each adapter; shape of each ``(rows,)``."""
        self._rows.by_adapter = rows

    def add(self, adapter: str, updates: Mapping[str, LoraUpdate]) -> None:
        """Let the layers of the model know an adapter.

        Parameters
        ----------
        adapter : its name.
        updates : by the path of the layer.

        Raises
        ------
        ServeError
            If the model has no such layers; nothing is changed then.
        """
        layers = {
            path: self.require(path, update.down.shape[0], update.up.shape[1])
            for path, update in updates.items()
        }
        for path, layer in layers.items():
            if not isinstance(layer, _LoraLinear):
                layer = _LoraLinear(layer, self._rows)
                self._model.set_submodule(path, layer)
            layer.updates[adapter] = updates[path]

    def remove(self, adapter: str) -> None:
        """Forget an adapter."""
        for path, layer in self._changed().items():
            layer.updates.pop(adapter, None)
            if not layer.updates:
                self._model.set_submodule(path, layer.base)

    def _changed(self) -> Mapping[str, _LoraLinear]:
        """Layers that adapters change, by their path."""
        modules = self._model.named_modules()
        return {path: each for path, each in modules if isinstance(each, _LoraLinear)}

    def require(self, path: str, inputs: int, outputs: int) -> nn.Module:
        """A layer of the model that an adapter may change, with as many features.

        Raises
        ------
        ServeError
            If there is none.
        """
        try:
            layer = self._model.get_submodule(path)
            if isinstance(self._model.get_submodule(path.rpartition(".")[0]), _LoraLinear):
                raise AttributeError  # a part of what is here because of another adapter
        except AttributeError:
            raise ServeError(f"{self._name} has no layer {shown(path)}, which the adapter changes") from None
        base = layer.base if isinstance(layer, _LoraLinear) else layer
        # The rows of these are other ones than the tokens of a step.
        has_other_rows = base is self._model.get_output_embeddings() or "expert" in path
        features = _features(base)
        if features is None or has_other_rows:
            raise ServeError(
                f"the adapter changes {path} of {self._name}, a {type(base).__name__}; allowed are linear layers between "
                "the embedding and the output that all tokens pass; train an adapter of these"
            )
        if features != (inputs, outputs):
            raise ServeError(
                f"the adapter changes {path} from {inputs} to {outputs} features; in "
                f"{self._name} it is from {features[0]} to {features[1]}; give an adapter of this model"
            )
        return layer


def _features(layer: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer; None of another one."""
    if isinstance(layer, PackedLinear) or type(layer) is nn.Linear:
        return int(layer.in_features), int(layer.out_features)
    if isinstance(layer, Conv1D):
        return int(layer.nx), int(layer.nf)
    return None
