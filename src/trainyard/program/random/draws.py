"""PyTorch's random ops, written with numbers that are drawn by position.

Every op reduces to uniform or standard normal numbers (``trainyard::draw``) and arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.capture_error import CaptureError
from trainyard.program.op_observer import frames_now, line_of_model
from trainyard.program.random.draw_op import Distribution

aten = torch.ops.aten


class Source(Protocol):
    """A source of random numbers."""

    def numbers(
        self, shape: Sequence[int], distribution: Distribution, dtype: torch.dtype, device: Any
    ) -> Tensor:
        """The next numbers of the model."""


class Draws(TorchDispatchMode):
    """Within it, every op that draws random numbers takes them from a source, also inside PyTorch's own functions."""

    supports_higher_order_operators = True

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        declared = func._schema.arguments
        given = {a.name: a.default_value for a in declared}
        given |= dict(zip(given, args, strict=False)) | kwargs
        write = _OPS.get(func)
        if write is None and not _draws(given):
            return func(*args, **kwargs)
        if given.get("generator") is not None:
            raise CaptureError(
                f"{line_of_model(frames_now())} draws random numbers from a generator of its own, whose state no graph "
                "holds. Leave the generator out: numbers are then drawn by position, others in every step; or draw them "
                "outside, and give them as a tensor of the batch"
            )
        if write is None:
            raise CaptureError(
                f"{line_of_model(frames_now())} draws random numbers by {func}, which cannot be drawn by position and "
                "would be others under every plan. Uniform, normal, Bernoulli, exponential, Cauchy and log-normal "
                "numbers, integers, permutations and multinomial draws can be; or draw outside, and give them as a "
                "tensor of the batch"
            )
        result = write(self.source, given)
        if func._schema.is_mutable and func not in _WRITES_BY_ITSELF:
            return given["self"].copy_(result)
        return result


def _draws(given: Mapping[str, Any]) -> bool:
    """Whether an op of these arguments draws: fused attention does only where it drops."""
    return bool(given.get("dropout_p", given.get("p", 1.0)) != 0.0)


Given = Mapping[str, Any]
_Write = Callable[[Source, Given], Any]


def _uniform(source: Source, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    kept = like.dtype if like.is_floating_point() else torch.float32
    return source.numbers(like.shape, "uniform", dtype or kept, like.device)


def _inner(source: Source, shape: Sequence[int], device: Any) -> Tensor:
    """Numbers of (0, 1) without its bounds, in float64."""
    numbers = source.numbers(shape, "uniform", torch.float64, device)
    return numbers * (1.0 - 2.0**-53) + 2.0**-54


def _made(distribution: Distribution) -> _Write:
    """Ops that make a tensor: of a size, or like another one."""

    def write(source: Source, given: Given) -> Tensor:
        like = given.get("self")
        if like is None:
            shape, dtype, device = given["size"], torch.get_default_dtype(), "cpu"
        else:
            shape, dtype, device = like.shape, like.dtype, like.device
        return source.numbers(
            list(shape), distribution, given.get("dtype") or dtype, given.get("device") or device
        )

    return write


def _uniform_between(source: Source, given: Given) -> Any:
    low, high = given["from"], given["to"]
    return _uniform(source, given["self"]) * (high - low) + low


def _normal(source: Source, given: Given) -> Any:
    """All forms of ``normal``: numbers or tensors as mean and deviation."""
    mean, std = given["mean"], given["std"]
    tensors = [t for t in (given.get("self"), mean, std) if isinstance(t, Tensor)]
    shape = given["size"] if "size" in given else torch.broadcast_shapes(*(t.shape for t in tensors))
    dtype = tensors[0].dtype if tensors else given.get("dtype") or torch.get_default_dtype()
    device = tensors[0].device if tensors else given.get("device") or "cpu"
    return source.numbers(list(shape), "normal", dtype, device) * std + mean


def _bernoulli(source: Source, given: Given) -> Any:
    p = given.get("p")
    like = given["self"]
    wide = torch.float64 if isinstance(p, Tensor) and p.dtype == torch.float64 else torch.float32
    return (_uniform(source, like, wide) < (like if p is None else p)).to(like.dtype)


def _exponential(source: Source, given: Given) -> Any:
    like = given["self"]
    return (-_inner(source, like.shape, like.device).log() / given["lambd"]).to(like.dtype)


def _geometric(source: Source, given: Given) -> Any:
    like = given["self"]
    trials = _inner(source, like.shape, like.device).log() / math.log1p(-given["p"])
    return trials.ceil().clamp(min=1.0).to(like.dtype)


def _cauchy(source: Source, given: Given) -> Any:
    like = given["self"]
    angle = (_inner(source, like.shape, like.device) - 0.5) * math.pi
    return (angle.tan() * given["sigma"] + given["median"]).to(like.dtype)


def _log_normal(source: Source, given: Given) -> Any:
    return _normal(source, given).exp()


def _integers(source: Source, given: Given) -> Any:
    """Integers from ``low`` or ``from`` up to and without ``high`` or ``to``; of ``random_``, all that the type holds."""
    like = given.get("self")
    shape = given["size"] if like is None else like.shape
    # The default of a schema is a number: that of int64.
    kept = torch.int64 if like is None else like.dtype
    dtype = given["dtype"] if isinstance(given.get("dtype"), torch.dtype) else kept
    device = given.get("device") or ("cpu" if like is None else like.device)
    low = given.get("low", given.get("from")) or 0
    high = given.get("high", given.get("to"))
    if high is None and dtype.is_floating_point:
        high = round(2 / torch.finfo(dtype).eps)
    if high is None:
        high = 2 if dtype == torch.bool else torch.iinfo(dtype).max + 1
    numbers = source.numbers(list(shape), "uniform", torch.float64, device)
    return (numbers * (high - low)).floor().add(low).to(dtype)


def _permutation(source: Source, given: Given) -> Tensor:
    numbers = source.numbers([given["n"]], "uniform", torch.float64, given.get("device") or "cpu")
    order: Tensor = aten.sort.default(numbers)[1]
    return order.to(given["dtype"]) if isinstance(given.get("dtype"), torch.dtype) else order


def _multinomial(source: Source, given: Given) -> Tensor:
    """The largest of logarithms with Gumbel's noise are drawn as by their weights."""
    weights, count = given["self"].double(), given["num_samples"]
    if given["replacement"]:
        weights = weights.unsqueeze(-2).expand(*weights.shape[:-1], count, weights.shape[-1])
    scores = weights.log() - (-_inner(source, weights.shape, weights.device).log()).log()
    result: Tensor = scores.argmax(-1) if given["replacement"] else scores.topk(count).indices
    return result


def _dropout(source: Source, given: Given) -> tuple[Tensor, Tensor]:
    x, p = given["input"], given["p"]
    if given["train"] is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = _uniform(source, x, torch.float32) >= p
    return x * kept * (1.0 / (1.0 - p) if p < 1.0 else 0.0), kept


def _leaky(source: Source, given: Given) -> Tensor:
    """Leaky ReLU with random slopes, which are the noise."""
    x, noise, low, high = given["self"], given["noise"], given["lower"], given["upper"]
    if not given["training"]:
        return torch.where(x > 0, x, x * ((low + high) / 2))
    noise.copy_(torch.where(x > 0, 1.0, _uniform(source, x) * (high - low) + low))
    result: Tensor = x * noise
    return result


_WRITES: dict[str, _Write] = {
    "rand": _made("uniform"),
    "randn": _made("normal"),
    "rand_like": _made("uniform"),
    "randn_like": _made("normal"),
    "uniform": _uniform_between,
    "uniform_": _uniform_between,
    "normal": _normal,
    "normal_": _normal,
    "normal_functional": _normal,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli,
    "exponential": _exponential,
    "exponential_": _exponential,
    "geometric": _geometric,
    "geometric_": _geometric,
    "cauchy": _cauchy,
    "cauchy_": _cauchy,
    "log_normal": _log_normal,
    "log_normal_": _log_normal,
    "randint": _integers,
    "randint_like": _integers,
    "random": _integers,
    "random_": _integers,
    "randperm": _permutation,
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "rrelu_with_noise": _leaky,
    "rrelu_with_noise_": _leaky,
}


def _overloads(name: str) -> list[Any]:
    """The overloads of an op that is drawn; not those that write to a tensor that they are given as ``out``."""
    packet = getattr(aten, name)
    found = [getattr(packet, overload) for overload in packet.overloads()]
    return [op for op in found if not any(a.is_out for a in op._schema.arguments)]


_OPS = {op: write for name, write in _WRITES.items() for op in _overloads(name)}
_WRITES_BY_ITSELF = frozenset(_overloads("rrelu_with_noise"))
