"""The models of the zoo: published sizes, no memory to build, rows that do not influence each other."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainyard.program.random.positional import PositionalDraws
from trainyard.zoo import build, initial_value, names
from trainyard.zoo.registry import TINY

COUPLED = {"resnet-tiny", "wide-resnet-tiny"}
"""Batch normalisation makes rows depend on each other."""


@pytest.fixture(autouse=True)
def one_thread():
    """For models this small, waking a second thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def materialise(name: str, rows: int | None = None):
    model = build(name, rows)
    with torch.no_grad():
        for entry, p in model.module.named_parameters():
            p.copy_(initial_value(model.module, entry, seed=3))
    return model


def scalar(loss):
    return loss[0] if isinstance(loss, tuple) else loss


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt2", 124.44),
        ("gpt2-xl", 1557.6),
        ("llama2-7b", 6738.4),
        ("llama3-8b", 8030.3),
        ("llama3-70b", 70553.7),
        ("bert-base", 109.5),
        ("resnet18", 11.69),
        ("resnet50", 25.56),
        ("wide-resnet50-2", 68.88),
        ("vgg16", 138.36),
    ],
)
def test_has_the_published_number_of_parameters(name, millions):
    with torch.device("meta"):
        model = build(name)
    assert sum(p.numel() for p in model.module.parameters()) / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-175b", 175),
        ("megatron-22b", 22),
        ("megatron-530b", 530),
        ("megatron-1t", 1008),
        ("wide-resnet-250m", 0.25),
        ("wide-resnet-13b", 13),
        ("moe-380m", 0.38),
        ("moe", 1.3),
        ("moe-70b", 70),
    ],
)
def test_has_about_the_size_in_its_name(name, billions):
    with torch.device("meta"):
        model = build(name)
    assert sum(p.numel() for p in model.module.parameters()) / 1e9 == pytest.approx(billions, rel=0.05)


@pytest.mark.parametrize("name", names())
def test_builds_without_data(name):
    with FakeTensorMode():
        model = build(name, 2)
    tensors = [*model.module.parameters(), *model.module.buffers(), *model.batch.values()]
    assert {type(t).__name__ for t in tensors} <= {"FakeTensor", "Parameter"}
    assert {t.shape[0] for t in model.batch.values()} == {2}


def test_gpt3_runs_without_data():
    with torch.device("meta"):
        model = build("gpt3-175b", 1)
        assert model.loss(model.module, model.batch).shape == ()


@pytest.mark.parametrize("name", TINY)
def test_learns_its_batch(name):
    model = materialise(name)
    optimizer = torch.optim.Adam(model.module.parameters(), lr=3e-3)
    losses = []
    for step in range(20):
        with PositionalDraws(torch.tensor([0, step, 0]), next(iter(model.batch.values())).shape[0]):
            loss = scalar(model.loss(model.module, model.batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.grad is not None for p in model.module.parameters())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", [n for n in TINY if n not in COUPLED])
def test_loss_is_the_mean_over_microbatches(name):
    model = materialise(name, 4)
    model.module.double()
    batch = {k: v.double() if v.is_floating_point() else v for k, v in model.batch.items()}

    def loss_of(first: int, count: int) -> torch.Tensor:
        rows = {k: v[first : first + count] for k, v in batch.items()}
        with PositionalDraws(torch.tensor([0, 0, first]), count):
            return scalar(model.loss(model.module, rows))

    parts = torch.stack([loss_of(0, 2), loss_of(2, 1), loss_of(2, 1), loss_of(3, 1), loss_of(3, 1)])
    weights = torch.tensor([2.0, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64) / 4
    assert torch.allclose(loss_of(0, 4), (parts * weights).sum(), rtol=1e-6)


def test_a_mistyped_name_is_answered_with_close_ones_first():
    with pytest.raises(ValueError, match=r"unknown model 'gtp2'; known: gpt2, .*dlrm"):
        build("gtp2")
    with pytest.raises(ValueError, match="from 1 to 100,000,000 rows"):
        build("gpt2", 0)


def test_initial_values_are_those_of_the_kind_of_module():
    with torch.device("meta"):
        gpt, resnet = build("gpt2").module, build("resnet50").module
    assert isinstance(gpt, nn.Module)
    assert initial_value(gpt, "tokens.weight", 0, [slice(2000), slice(None)]).std() == pytest.approx(
        0.02, rel=0.01
    )
    down = initial_value(gpt, "blocks.0.down.weight", 0)
    assert down.std() == pytest.approx(0.02 / 24**0.5, rel=0.01)
    assert abs(down.mean()) < 1e-4
    assert torch.equal(initial_value(gpt, "norm.weight", 0), torch.ones(768))
    assert torch.equal(initial_value(gpt, "norm.bias", 0, [slice(5, 9)]), torch.zeros(4))
    kernel = initial_value(resnet, "blocks.0.parts.1.convolution.weight", 0)
    assert kernel.std() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert torch.equal(initial_value(resnet, "stem.norm.running_var", 0), torch.ones(64))
    assert initial_value(resnet, "stem.norm.num_batches_tracked", 0).dtype == torch.int64


def test_a_part_of_an_initial_value_is_the_part_of_the_whole():
    with torch.device("meta"):
        module = build("moe-tiny").module
    name = "blocks.1.experts.up"
    whole = initial_value(module, name, 7)
    part = (slice(1, 3), slice(0, 64), slice(17, 100))
    assert torch.equal(initial_value(module, name, 7, part), whole[part])
    assert not torch.equal(initial_value(module, name, 8), whole)
    assert not torch.equal(initial_value(module, "blocks.1.experts.down", 7).flatten(), whole.flatten())


def test_initial_values_that_are_not_known_are_refused():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(6.0))

    assert torch.equal(initial_value(Own(), "table", 0, [slice(2, 4)]), torch.tensor([2.0, 3.0]))
    with pytest.raises(ValueError, match="build the model on the CPU"):
        initial_value(Own().to("meta"), "table", 0)
    with pytest.raises(ValueError, match="no parameter or buffer 'tabel'; it has table"):
        initial_value(Own(), "tabel", 0)
