"""Small models at the edges of lowering: shared, frozen, rewritten, unused, made of constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import edge_models as models
import pytest
import torch
import torch.nn.functional as F
from made_plan import made_plan
from one_step import summed
from torch import Tensor, nn

from trainyard.job.lower.axes import shard_whole
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Plan, PlanError
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedules import make_schedule
from trainyard.job.task import Task
from trainyard.program.addresses import address
from trainyard.program.capture import CaptureError, capture
from trainyard.program.model import Model
from trainyard.program.placement import Shard, parse_placement
from trainyard.program.program import Program


@dataclass(frozen=True)
class Case:
    """A model and a plan for it.

    Attributes
    ----------
    build : makes the module and its loss.
    starts : first ops of the stages after the first; by default stages of equally many ops.
    recompute : all forward ops.
    cut : parameters along the data axis.
    """

    build: Callable[[], tuple[models.Net, Any]]
    pipeline: int = 1
    per_rank: int = 1
    data: int = 1
    microbatches: int = 2
    schedule: str = "one_f_one_b"
    starts: tuple[str, ...] = ()
    zero: int = 0
    recompute: bool = False
    dtype: str = "float32"
    cut: tuple[tuple[str, Shard], ...] = ()

    @cache  # noqa: B019 - cases are few and live as long as the module
    def model(self) -> Model:
        torch.manual_seed(0)
        net, loss = self.build()
        batch = {"x": torch.randn(models.ROWS, models.WIDTH), "y": torch.randn(models.ROWS, models.WIDTH)}
        return Model(self.build.__name__, net, loss, batch)

    @cache  # noqa: B019 - as above
    def task(self) -> Task:
        return Task(self.model(), self.dtype, "microbatch")

    def program(self) -> Program:
        return self.task().program(models.ROWS // self.microbatches)

    def plan(self, program: Program) -> Plan:
        forward = [address(n) for n in program.graph.nodes if _is_forward(n)]
        stages = self.pipeline * self.per_rank
        starts = self.starts or tuple(forward[len(forward) * i // stages] for i in range(1, stages))
        return made_plan(
            program,
            models.ROWS,
            make_schedule(self.schedule, self.pipeline, self.microbatches, self.per_rank),
            data=self.data,
            starts=starts,
            placed={"data": dict(self.cut)} if self.data > 1 else {},
            recompute=forward if self.recompute else (),
            zero=self.zero,
            dtype=self.dtype,
            statistics=self.task().statistics_in(self.microbatches),
        )

    def lowered(self) -> Lowered:
        program = self.program()
        return lower(program, self.plan(program))


def _is_forward(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.meta["phase"] == "forward"


ALONE = {
    "buffer rewritten": Case(models.rewritten_buffer),
    "buffer rewritten, recompute": Case(models.rewritten_buffer, recompute=True),
    "spectral norm, recompute": Case(models.spectral_norm, recompute=True),
    "one tensor, two results": Case(models.one_tensor_twice_reported),
    "parameter reported": Case(models.parameter_reported),
    "gradient of a sum": Case(models.gradient_of_a_sum),
    "gradient of a sum, split": Case(models.gradient_of_a_sum, schedule="zero_bubble_h1"),
    "constants": Case(models.constants, recompute=True),
    "dead random op": Case(models.dead_random_op),
    "tied on one rank": Case(models.tied, per_rank=2, schedule="interleaved"),
}
TOGETHER = {
    "two tied, in other orders": Case(models.two_tied, pipeline=2, starts=(":mm.3",)),
    "tied through a view": Case(models.tied_view, pipeline=2),
    "tied three times": Case(models.tied_three_times, pipeline=2, starts=(":mm.3",)),
    "detached use": Case(models.detached_use, pipeline=2, starts=("b:addmm",)),
    "norm of another stage": Case(models.norm_of_another_stage, pipeline=2, starts=(":tanh",)),
    "loss of another stage": Case(models.loss_of_another_stage, pipeline=2, starts=(":tanh",)),
    "bucket made in both halves": Case(
        models.weights_made_by_another_stage, pipeline=2, schedule="zero_bubble_h1", starts=(":add",)
    ),
    "frozen stage": Case(models.frozen, pipeline=2, starts=(":tanh",)),
    "frozen stage, split": Case(models.frozen, pipeline=2, starts=(":tanh",), schedule="zero_bubble_h1"),
    "spectral norm, split": Case(
        models.spectral_norm, pipeline=2, microbatches=4, schedule="zero_bubble_h1", recompute=True
    ),
    "interleaved": Case(models.layer_norm, pipeline=2, per_rank=2, microbatches=4, schedule="interleaved"),
    "v": Case(models.layer_norm, pipeline=2, per_rank=2, microbatches=4, schedule="zb_v"),
    "maximum of cut rows": Case(models.maximum_reported, data=2),
    "a view of what travels": Case(models.view_of_what_travels, pipeline=2, starts=(":transpose.2",)),
    "one gradient, cut in two ways": Case(
        models.one_gradient_of_two, data=2, cut=(("base", Shard(0, 2)), ("delta", Shard(0)))
    ),
    "one gradient, cut and whole": Case(models.one_gradient_of_two, data=2, cut=(("base", Shard(0)),)),
    "batch norm, parameters cut": Case(models.batch_norm, data=2, microbatches=1, zero=3),
    "batch norm without momentum": Case(models.batch_norm_without_momentum, data=2, microbatches=1),
    "ctc, in halves": Case(models.ctc, data=2),
    "attention within documents": Case(models.attention_within_documents, data=2),
    "gradients cut": Case(models.layer_norm, data=2, microbatches=4, zero=2),
    "frozen parameters shared": Case(models.partly_frozen, data=2, zero=3, recompute=True),
    "frozen parameters shared, in stages": Case(
        models.partly_frozen, data=2, zero=3, per_rank=2, schedule="interleaved"
    ),
}


def _train(case: Case, rank: int) -> dict[str, Any]:
    """What one rank has after one backward pass, and after one whole step more."""
    held = dict(case.model().module.state_dict(keep_vars=True))
    values = {name: value.detach().clone() for name, value in held.items()}
    lowered = replace(case.lowered(), optimizer=OptimizerConfig("sgd", lr=0.05))
    executor = Executor(lowered, rank, values.__getitem__, torch.device("cpu"))
    # Every message has the same tag: as on devices, receives match sends by their order alone.
    executor._tag = lambda *_: 0  # type: ignore[method-assign]
    batch = {f"batch.{key}": value for key, value in case.model().batch.items()}
    executor.forward_backward(batch, 0)
    waiting = len(executor.state.in_flight)
    losses, summed_grads = summed(executor)
    grads = {path: value.numpy() for path, value in summed_grads.items()}
    buffers = {path: value.float().numpy() for path, value in executor.buffers.items()}
    executor.step(batch, 1)
    assert not executor.values, "values outlive their step"
    return {"grads": grads, "buffers": buffers, "losses": losses, "waiting": waiting}


def _rank(rank: int) -> dict[str, Any]:
    return {name: _train(case, rank) for name, case in TOGETHER.items()}


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    return run_ranks(2, _rank)


def _check(case: Case, found: list[dict[str, Any]], relative: float = 1e-5) -> None:
    model = case.model()
    module, count = model.module, case.microbatches if case.task().coupling is not None else 1
    module.zero_grad()
    before = {name: b.clone() for name, b in module.named_buffers()}
    wanted: dict[str, float] = {}
    for k in range(count):
        rows = slice(k * models.ROWS // count, (k + 1) * models.ROWS // count)
        result = model.loss(module, {name: value[rows] for name, value in model.batch.items()})
        loss, metrics = result if isinstance(result, tuple) else (result, {})
        (loss / count).backward()
        named = {"loss:loss": loss, **{f"metric:{name}": value for name, value in metrics.items()}}
        wanted = {name: wanted.get(name, 0.0) + float(v.detach()) / count for name, v in named.items()}
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    buffers = dict(module.named_buffers())
    assert set().union(*(answer["grads"] for answer in found)) == set(grads)
    for rank, answer in enumerate(found):
        assert answer["losses"] == pytest.approx(wanted, rel=max(relative, 1e-5))
        for kind, right in (("grads", grads), ("buffers", buffers)):
            for name, value in answer[kind].items():
                part = _part(right[name].float(), dict(case.cut).get(name), rank, len(found))
                difference = (torch.from_numpy(value) - part).norm()
                assert float(difference) <= relative * float(part.norm()), (kind, name)
    for name, value in before.items():
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, value)


def _part(whole: Tensor, cut: Shard | None, rank: int, num_ranks: int) -> Tensor:
    """Rows of one rank."""
    return whole if cut is None else whole.unflatten(0, (cut.blocks, num_ranks, -1))[:, rank].flatten(0, 1)


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_equals_eager(name: str) -> None:
    case = ALONE[name]
    _check(case, [_train(case, 0)])


def test_in_16_bits_the_batch_and_buffers_keep_their_types() -> None:
    case = Case(models.table_of_angles, dtype="bfloat16")
    found = _train(case, 0)
    _check(case, [found], 0.02)
    assert found["buffers"]["table"].tolist() == case.model().module.table.tolist()


@pytest.mark.parametrize("name", TOGETHER)
def test_two_ranks_equal_eager(name: str, answers: list[dict[str, Any]]) -> None:
    _check(TOGETHER[name], [answer[name] for answer in answers])


def test_two_reductions_are_in_flight_however_many_microbatches_there_are(
    answers: list[dict[str, Any]],
) -> None:
    assert [answer["gradients cut"]["waiting"] for answer in answers] == [2, 2]


def test_a_missing_gradient_is_noticed() -> None:
    case = ALONE["constants"]
    values = {**case.model().module.state_dict()}
    executor = Executor(case.lowered(), 0, values.__getitem__, torch.device("cpu"))
    with pytest.raises(RuntimeError, match=r"a\.weight.*gradients of 0 microbatches of 2"):
        executor.state.finish_accumulation(list(executor.state.buckets))


def test_a_buffer_written_in_two_stages_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'norm\.running_mean' is written in stage 1 .* stages \[0\]"):
        Case(models.norm_used_twice, pipeline=2, starts=(":tanh",)).lowered()


def test_values_are_let_go_after_their_last_reader() -> None:
    case = Case(models.layer_norm, pipeline=2, schedule="zero_bubble_h1", starts=("norm:native_layer_norm",))
    lowered = case.lowered()
    stage = lowered.stages[1]
    taken = {kind: {s.name for s in seg.inputs if s.kind == "value"} for kind, seg in stage.segments.items()}
    assert stage.freed["I"]
    assert stage.freed["I"] == taken["I"] - taken["W"]
    assert stage.freed["W"] == taken["W"]
    nodes = lowered.program.nodes
    tuples = [name for name in taken["W"] if not isinstance(nodes[name].meta["val"], Tensor)]
    assert not tuples, "taken apart where they are made, the parts that W does not need are not kept"


def test_what_is_moved_is_recomputed_with_its_source() -> None:
    program = Case(models.gelu_last, microbatches=1).program()
    forward = frozenset(address(n) for n in program.graph.nodes if _is_forward(n))
    styles = {"a.weight": "S0", "a.bias": "S0", "b.weight": "S1"}
    placed = {"tensor": {path: parse_placement(text) for path, text in styles.items()}}
    kept = {}
    for again in (frozenset[str](), forward):
        schedule = make_schedule("gpipe", 1, 1)
        plan = made_plan(program, models.ROWS, schedule, tensor=2, placed=placed, recompute=again)
        segments = lower(program, plan).stages[0].segments
        backward = segments["B"]
        taken = dict(zip(backward.inputs, backward.graph.find_nodes(op="placeholder"), strict=True))
        kept[again] = [node for slot, node in taken.items() if slot.kind == "value"]
    assert any("moved_from" in node.meta for node in kept[frozenset()])
    assert not kept[forward]


def test_recomputing_what_is_no_forward_op_is_refused() -> None:
    case = Case(models.gelu_last)
    program = case.program()
    wrong = {
        ":tanhh": "':tanhh' is no op of the model; there are :tanh",
        "b:backward.mm": "of the backward pass",
    }
    for name, message in wrong.items():
        with pytest.raises(PlanError, match=message):
            lower(program, case.plan(program).with_recomputed({name}))


def test_random_ops_are_refused_by_name_and_layer() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.poisson(x.detach().abs())

    net = models.Net(lambda net, x: net.noise(models.plain(net, x)))
    net.noise = Noise()
    batch = {"x": torch.randn(models.ROWS, models.WIDTH), "y": torch.randn(models.ROWS, models.WIDTH)}
    with pytest.raises(CaptureError, match="poisson"):
        capture(Model("noise", net, models.mse, batch))


def test_dropout_and_attention_without_it_are_captured() -> None:
    def forward(net: models.Net, x: Tensor) -> Tensor:
        h = F.dropout(net.a(x), 0.1).view(models.ROWS, 1, 2, 4)
        return net.b(F.scaled_dot_product_attention(h, h, h).reshape(models.ROWS, models.WIDTH))

    batch = {"x": torch.randn(models.ROWS, models.WIDTH), "y": torch.randn(models.ROWS, models.WIDTH)}
    assert capture(Model("attention", models.Net(forward), models.mse, batch)).num_rows == models.ROWS


def test_the_fingerprint_covers_arguments_and_wiring() -> None:
    def of(forward: Callable[[models.Net, Tensor], Tensor], loss: Any = models.mse) -> str:
        batch = {"x": torch.randn(models.ROWS, models.WIDTH), "y": torch.randn(models.ROWS, models.WIDTH)}
        return capture(Model("m", models.Net(forward), loss, batch)).fingerprint

    def slope(s: float) -> Callable[[models.Net, Tensor], Tensor]:
        return lambda net, x: F.leaky_relu(net.b(net.a(x)), s)

    found = [
        of(slope(0.1)),
        of(slope(0.5)),
        of(lambda net, x: F.leaky_relu(net.a(net.b(x)), 0.1)),
        of(slope(0.1), lambda net, batch: (models.mse(net, batch), {"m": net.a.bias[0]})),
    ]
    assert len(set(found)) == len(found)
    assert of(slope(0.1)) == found[0]


def test_names_of_the_captured_program_mean_the_same_after_ops_are_written_out() -> None:
    from trainyard.zoo.registry import build

    program = capture(build("resnet-tiny", models.ROWS), models.ROWS)
    plan = made_plan(program, models.ROWS, make_schedule("gpipe", 1, 1), data=2)
    local = shard_whole(program, plan)
    assert any("part_of" in node.meta for node in local.graph.nodes)
    for name, node in program.nodes.items():
        if node.op == "call_function":
            assert local.nodes[name].meta["layer"] == node.meta["layer"], name
            assert local.nodes[name].meta["address"] == node.meta["address"], name
