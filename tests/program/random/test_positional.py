"""Dropout by position: what it must not depend on, and what it must."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from trainyard.program.random.dropout_op import dropout_by_arithmetic, mix64
from trainyard.program.random.positional import PositionalDraws, dropout

# The first example compiles, which may take longer than hypothesis allows one.
relaxed = settings(deadline=None)
OP = torch.ops.trainyard.dropout.default


def rng(seed: int = 1, step: int = 2, first_row: int = 0) -> torch.Tensor:
    return torch.tensor([seed, step, first_row])


@st.composite
def slices(draw: st.DrawFn) -> tuple[list[int], list[slice], int]:
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    cuts = [sorted(draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)))) for n in shape]
    parts = [slice(a, max(b, a + 1)) for a, b in cuts]
    return shape, parts, draw(st.integers(0, len(shape) - 1))


@relaxed
@given(slices(), st.integers(0, 2**40), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_a_slice_is_the_slice_of_the_whole(case, first_row, dtype):
    shape, parts, batch_dim = case
    x = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=dtype).view(shape)
    row = x.numel() // shape[batch_dim]
    whole = dropout(x, rng(first_row=first_row), 0.4, 3, batch_dim, row)
    offsets = [p.start for p in parts]
    part = dropout(x[tuple(parts)], rng(first_row=first_row), 0.4, 3, batch_dim, row, shape, offsets)
    assert torch.equal(part, whole[tuple(parts)])


@relaxed
@given(slices(), st.integers(0, 2**40), st.integers(-(2**63), 2**63 - 1), st.floats(0, 1))
def test_arithmetic_gives_the_same_bits(case, first_row, seed, p):
    shape, parts, batch_dim = case
    x = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape)[tuple(parts)]
    numbers = rng(seed, 7, first_row)
    args = (x, numbers, p, 5, batch_dim, 3, shape, [s.start for s in parts])
    assert torch.equal(OP(*args), dropout_by_arithmetic(*args))


def test_known_mixing_values():
    # The first two outputs of SplitMix64 seeded with 1234567.
    golden = 0x9E3779B97F4A7C15
    assert mix64((1234567 + golden) % 2**64) == 6457827717110365317
    assert mix64((1234567 + 2 * golden) % 2**64) == 3203168211198807973


@relaxed
@given(st.integers(1, 6), st.sampled_from([1, 2, 3]), st.booleans())
def test_microbatches_draw_the_mask_of_the_whole_batch(rows, per_row, time_first):
    count = 4
    x = torch.ones(5, rows * count, 7) if time_first else torch.ones(rows * count * per_row, 5, 7)
    assume(not time_first or 5 % rows)
    dim = 1 if time_first else 0
    with PositionalDraws(rng(), rows * count):
        whole = F.dropout(x, 0.5)
    for i, part in enumerate(x.chunk(count, dim)):
        with PositionalDraws(rng(first_row=i * rows), rows):
            assert torch.equal(F.dropout(part, 0.5), whole.chunk(count, dim)[i])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keeps_at_the_rate_and_the_mean(p):
    n = 1 << 20
    y = dropout(torch.ones(n), rng(), p, 0)
    rate = (y != 0).float().mean().item()
    # Six standard deviations of a binomial.
    assert abs(rate - (1 - p)) < 6 * (p * (1 - p) / n) ** 0.5
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - p)))


def test_masks_of_different_steps_salts_seeds_and_places_are_uncorrelated():
    x, n = torch.ones(1 << 16), 1 << 16
    masks = [
        dropout(x, rng(), 0.5, 0),
        dropout(x, rng(step=3), 0.5, 0),
        dropout(x, rng(seed=2), 0.5, 0),
        dropout(x, rng(), 0.5, 1),
        dropout(x, rng(first_row=1), 0.5, 0, row_elements=n),
    ]
    masks += [masks[0].roll(k) for k in (1, 2, 64, 256, 4096)]
    correlation = torch.corrcoef(torch.stack(masks))
    assert (correlation - torch.eye(len(masks))).abs().max() < 6 * n**-0.5


def test_is_the_same_again_and_over_threads():
    x = torch.randn(3, 1 << 19)
    first = dropout(x, rng(), 0.3, 1)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(dropout(x, rng(), 0.3, 1), first)
    finally:
        torch.set_num_threads(threads)


def test_extremes():
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert torch.equal(dropout(x, rng(), 1.0, 0), torch.zeros(3))
    assert torch.equal(dropout(x[::2], rng(), 0.0, 0), x[::2])
    assert dropout(x[:0], rng(), 0.5, 0).shape == (0,)
    assert dropout(torch.tensor(2.0), rng(), 0.0, 0) == 2.0


def test_the_gradient_has_the_mask_of_the_forward():
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda t: dropout(t, rng(), 0.5, 0), x)
    torch.autograd.gradgradcheck(lambda t: dropout(t, rng(), 0.5, 0) * t, x)
    y = dropout(x, rng(), 0.5, 0)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, (y != 0) * 2.0)


def test_passes_the_operator_checks_of_pytorch():
    x = torch.randn(4, 6, requires_grad=True)
    torch.library.opcheck(OP, (x, rng(), 0.5, 0, 0, 6, [4, 6], [0, 0]))


def test_is_one_node_forward_and_one_backward():
    def step(x, numbers):
        with PositionalDraws(numbers, 4):
            loss = F.dropout(x * 2, 0.5).sum()
        return torch.autograd.grad(loss, x)

    with FakeTensorMode():
        x, numbers = torch.ones(4, 6, requires_grad=True), torch.zeros(3, dtype=torch.int64)
        graph = make_fx(step)(x, numbers).graph
    nodes = [n for n in graph.nodes if n.target is OP]
    assert len(nodes) == 2
    assert [n.args[2:] for n in nodes] == [(0.5, 0, 0, 6, [4, 6], [0, 0])] * 2
    assert not [n for n in graph.nodes if "native_dropout" in n.name or "bernoulli" in n.name]


def test_evaluation_and_zero_probability_are_untouched():
    x = torch.randn(4, 4)
    with PositionalDraws(rng(), 4) as mode:
        assert F.dropout(x, 0.5, training=False) is x or torch.equal(F.dropout(x, 0.5, False), x)
        assert torch.equal(nn.Dropout(0.5).eval()(x), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        with pytest.raises(ValueError, match="probability"):
            F.dropout(x, 1.5)
    assert mode.calls == 0


def test_salts_number_the_calls_and_begin_again():
    x = torch.ones(4, 64)
    mode = PositionalDraws(rng(), 4)
    with mode:
        first, second = F.dropout(x, 0.5), nn.Dropout(0.5)(x)
    with mode:
        again = torch.dropout(x, 0.5, True)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_in_place_writes_its_input():
    x = torch.ones(4, 64)
    with PositionalDraws(rng(), 4):
        y = F.dropout(x, 0.5, inplace=True)
    assert y is x
    assert (x == 0).any()


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"bool_mask": True},
        {"float_mask": True},
        {"blind": True},
        {"scale": 0.3},
        {"enable_gqa": True},
    ],
    ids=lambda o: next(iter(o)),
)
def test_attention_is_that_of_pytorch_for_the_ones_kept(options):
    """With hardly any dropout, the written-out attention is the fused one."""
    torch.manual_seed(0)
    heads = 2 if "enable_gqa" in options else 4
    q = torch.randn(2, 4, 5, 8)
    k, v = torch.randn(2, 2, heads, 7, 8).unbind(0)
    if options.pop("blind", False):  # the third may look at nobody
        options["attn_mask"] = torch.tensor([True, True, False, True, True])[:, None].expand(5, 7)
    if options.pop("bool_mask", False):
        options["attn_mask"] = torch.randn(5, 7) > -1
    if options.pop("float_mask", False):
        options["attn_mask"] = torch.randn(2, 1, 5, 7)
    with PositionalDraws(rng(), 2) as mode:
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, **options)
        assert mode.calls == 1
        plain = F.scaled_dot_product_attention(q, k, v, **options)
        assert mode.calls == 1
    assert torch.allclose(y, plain, atol=1e-6)


def test_dropout_hidden_in_multi_head_attention_is_found():
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(3, 5, 8)
    for weights in (True, False):
        with PositionalDraws(rng(), 3) as mode:
            first = layer(x, x, x, need_weights=weights)[0]
        assert mode.calls == 1
        with mode:
            assert torch.equal(layer(x, x, x, need_weights=weights)[0], first)
    assert F.dropout.__name__ == "dropout"
    assert F.dropout.__module__ == "torch.nn.functional"


@relaxed
@given(st.integers(0, 2**62), st.integers(0, 2**30))
def test_runs_where_positions_are_large(first_row, salt):
    x = torch.ones(3, 2)
    args = (x, rng(first_row=first_row), 0.5, salt, 0, 2**20, [3, 2], [0, 0])
    assert torch.equal(OP(*args), dropout_by_arithmetic(*args))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch finds none")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_draws_the_masks_of_the_cpu(dtype):
    x = torch.randn(8, 33, 5).to(dtype)
    args = (rng(first_row=9), 0.3, 4, 0, 165, [8, 33, 5], [0, 0, 0])
    assert torch.equal(OP(x.cuda(), *args).cpu(), OP(x, *args))
