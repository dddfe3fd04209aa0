"""Arguments of normalisations, softmax and losses."""

from __future__ import annotations

from typing import Any

import torch

from algebra_cases.drawing import Draw, case
from trainyard.program.ctc_loss import CTC_LOSS, CTC_LOSS_BACKWARD

aten = torch.ops.aten


@case(aten._softmax.default, aten._log_softmax.default)
def _softmax(d: Draw) -> tuple[Any, ...]:
    return *d.with_dim(), False


@case(aten._safe_softmax.default)
def _safe_softmax(d: Draw) -> tuple[Any, ...]:
    return d.with_dim()


@case(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(d: Draw) -> tuple[Any, ...]:
    x, dim = d.with_dim()
    return d.real(*x.shape), x, dim, torch.float64


@case(
    aten.cumsum.default,
    aten.cumprod.default,
    aten.cummax.default,
    aten.cummin.default,
    aten.logcumsumexp.default,
)
def _cumulative(d: Draw) -> tuple[Any, ...]:
    return d.with_dim()


@case(aten.native_layer_norm.default)
def _layer_norm(d: Draw) -> tuple[Any, ...]:
    lead, last = d.shape(1, 3), d.pick(2, 4)
    affine = d.pick(True, False)
    weights = [d.real(last), d.real(last)] if affine else [None, None]
    return d.real(*lead, last), [last], *weights, 1e-5


@case(aten.native_layer_norm_backward.default)
def _layer_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, normalised, weight, bias, eps = _layer_norm(d)
    _, mean, scale = aten.native_layer_norm.default(x, normalised, weight, bias, eps)
    asked = [True, weight is not None, weight is not None]
    return d.real(*x.shape), x, normalised, mean, scale, weight, bias, asked


@case(aten._fused_rms_norm.default)
def _rms_norm(d: Draw) -> tuple[Any, ...]:
    return d.real(*d.shape(1, 3), 4), [4], d.real(4), 1e-5


@case(aten.native_group_norm.default)
def _group_norm(d: Draw) -> tuple[Any, ...]:
    n, c = d.size(), d.pick(2, 4)
    weights = d.pick([None, None], [d.real(c), d.real(c)])
    return d.real(n, c, 3, 2), *weights, n, c, 6, 2, 1e-5


@case(aten.native_group_norm_backward.default)
def _group_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, *sizes, eps = _group_norm(d)
    _, mean, scale = aten.native_group_norm.default(x, weight, bias, *sizes, eps)
    asked = [True, weight is not None, weight is not None]
    return d.real(*x.shape), x, mean, scale, weight, *sizes, asked


@case(aten._weight_norm_interface.default)
def _weight_norm(d: Draw) -> tuple[Any, ...]:
    shape = d.shape(2, 3)
    dim = d.pick(0, len(shape) - 1)
    return d.real(*shape), d.real(*(n if i == dim else 1 for i, n in enumerate(shape))), dim


@case(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, length, dim = _weight_norm(d)
    return d.real(*x.shape), x, length, aten._weight_norm_interface.default(x, length, dim)[1], dim


@case(aten._native_batch_norm_legit.no_stats)
def _batch_norm_alone(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, *_ = _batch_norm(d)
    return x, *d.pick((weight, bias), (None, None)), True, 0.1, 1e-5


@case(aten._native_batch_norm_legit_functional.default)
def _batch_norm(d: Draw) -> tuple[Any, ...]:
    x = d.real(d.pick(2, 4), d.pick(2, 4, 6), 3, 2)
    channels = [d.real(x.shape[1]) for _ in range(3)]
    return x, *channels, d.real(x.shape[1]).abs(), d.pick(True, False), 0.1, 1e-5


@case(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_given(d: Draw) -> tuple[Any, ...]:
    *tensors, _, momentum, eps = _batch_norm(d)
    return *tensors, momentum, eps


@case(aten.native_batch_norm_backward.default)
def _batch_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, weight, bias, mean, var, training, _, eps = _batch_norm(d)
    found = aten._native_batch_norm_legit_functional.default(x, weight, bias, mean, var, training, 0.1, eps)
    return d.real(*x.shape), x, weight, mean, var, found[1], found[2], training, eps, [True, True, True]


@case(aten.nll_loss_forward.default)
def _nll(d: Draw) -> tuple[Any, ...]:
    n, c = d.size(), d.pick(2, 4, 8)
    weight = d.pick(None, d.real(c).abs() + 0.1)
    ignored = d.pick(-100, 1)
    target = d.index(c, n)
    # With a mean the op is not cut at all; capture writes it as a sum.
    return d.real(n, c), target, weight, d.pick(1, 2, 2), ignored


@case(aten.nll_loss_backward.default)
def _nll_backward(d: Draw) -> tuple[Any, ...]:
    scores, target, weight, reduction, ignored = _nll(d)
    _, count = aten.nll_loss_forward.default(scores, target, weight, reduction, ignored)
    return d.real(), scores, target, weight, reduction, ignored, count


@case(aten.renorm.default)
def _renorm(d: Draw) -> tuple[Any, ...]:
    x = d.real(*d.shape(2))
    return x, 2, d.dim(x.dim()), 0.5


@case(aten.multi_margin_loss.default)
def _multi_margin(d: Draw) -> tuple[Any, ...]:
    n, c = d.size(), 4
    return d.real(n, c), d.index(c, n), 1, 1.0, d.pick(None, d.real(c).abs()), 0


@case(aten.multi_margin_loss_backward.default)
def _multi_margin_backward(d: Draw) -> tuple[Any, ...]:
    scores, target, *rest = _multi_margin(d)
    return d.real(len(target)), scores, target, *rest


@case(aten.multilabel_margin_loss_forward.default)
def _multilabel_margin(d: Draw) -> tuple[Any, ...]:
    n, c = d.size(), 4
    return d.real(n, c), d.index(c, n, c), 0


@case(aten.multilabel_margin_loss_backward.default)
def _multilabel_margin_backward(d: Draw) -> tuple[Any, ...]:
    scores, target, reduction = _multilabel_margin(d)
    _, is_target = aten.multilabel_margin_loss_forward.default(scores, target, reduction)
    return d.real(len(target)), scores, target, reduction, is_target


@case(CTC_LOSS)
def _ctc(d: Draw) -> tuple[Any, ...]:
    rows, classes, time, most = d.size(), d.pick(2, 5), 6, d.pick(1, 3)
    log_probs = d.real(time, rows, classes).log_softmax(-1)
    targets, inputs = d.index(classes - 1, rows, most) + 1, d.index(time, rows) + 1
    return log_probs, targets, inputs, d.index(most + 1, rows), 0, d.pick(True, False)


@case(CTC_LOSS_BACKWARD)
def _ctc_backward(d: Draw) -> tuple[Any, ...]:
    *tensors, blank, zero_infinity = _ctc(d)
    losses, log_alpha = CTC_LOSS(*tensors, blank, zero_infinity)
    return d.real(len(losses)), *tensors, losses, log_alpha, blank, zero_infinity
