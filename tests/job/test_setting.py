"""What a setting answers, on a network small enough to count by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn

from trainyard.cost.collectives import collective_cost
from trainyard.cost.ops import OpSeconds
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.parse import parse_cluster
from trainyard.job.planning import make_setting, simulate_task
from trainyard.job.remesh import resized
from trainyard.job.setting import Setting, first_plan
from trainyard.job.task import Task
from trainyard.program.flops import node_flops
from trainyard.program.model import Model
from trainyard.program.placement import Shard

ROWS = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8, bias=False)
        self.down = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class FlopSeconds(OpSeconds):
    """A device of one operation per second, on which nothing else takes time."""

    def __call__(self, node: fx.Node, device: DeviceSpec) -> float:
        return float(node_flops(node))


@pytest.fixture(scope="module")
def setting() -> Setting:
    model = Model(
        "net", Net(), lambda net, batch: net(batch["x"]).square().sum(), {"x": torch.zeros(ROWS, 4)}
    )
    return replace(make_setting(Task(model), parse_cluster("1x1xT4")), op_seconds=FlopSeconds())


def test_ops(setting: Setting) -> None:
    table = setting.op_table(ROWS)
    products = [i for i, flops in enumerate(table.flops) if flops]
    assert [table.names[i] for i in products] == [
        "up:mm",
        "down:addmm",
        "down:backward.mm",
        "down:backward.mm.2",
        "up:backward.mm",
    ]
    # 2 m n k: 6 rows through 4 x 8 and 8 x 2, and back; the input has no gradient.
    assert table.flops[products].tolist() == table.seconds[products].tolist() == [384, 192, 192, 192, 384]
    assert table.is_backward[products].tolist() == [False, False, True, True, True]
    assert table.layer[products].tolist() == [0, 1, 1, 1, 0]
    # Read 6 x 4 and 4 x 8, write 6 x 8, in float32; of the second product the bias, too.
    assert table.num_bytes[products[:2]].tolist() == [4 * (24 + 32 + 48), 4 * (48 + 16 + 2 + 12)]


def test_tensors(setting: Setting) -> None:
    ops, table = setting.op_table(ROWS).names, setting.tensor_table(ROWS)
    made = {name: i for i, name in enumerate(table.names)}

    def fact(name: str) -> tuple[str, int, str, list[str]]:
        i = made[name]
        producer = "" if table.producer[i] < 0 else ops[table.producer[i]]
        return table.kinds[i], int(table.num_bytes[i]), producer, [ops[c] for c in table.consumers_of(i)]

    weights = [i for i, kind in enumerate(table.kinds) if kind == "param"]
    assert table.num_bytes[weights].tolist() == [4 * 32, 4 * 16, 4 * 2]
    # Products read weights through a transposed view, which is no tensor of its own.
    assert fact(table.names[weights[1]]) == ("param", 64, "", ["down:addmm", "down:backward.mm"])
    assert table.names[weights[1]] == "down.weight"
    readers = ["down:addmm", "down:backward.mm.2", ":backward.threshold_backward"]
    assert fact(":relu") == ("value", 4 * 48, ":relu", readers)
    assert fact("up:backward.mm") == ("value", 4 * 32, "up:backward.mm", [])


def test_parts_of_a_tuple_are_what_their_op_makes() -> None:
    model = Model(
        "norm", nn.LayerNorm(4), lambda norm, batch: norm(batch["x"]).sum(), {"x": torch.zeros(ROWS, 4)}
    )
    setting = make_setting(Task(model), parse_cluster("1x1xT4"))
    ops, table = setting.op_table(ROWS).names, setting.tensor_table(ROWS)
    norm = [i for i, op in enumerate(table.producer) if op == ops.index(":native_layer_norm")]
    # The result, and the mean and deviation of each row, which only the backward pass reads.
    assert table.num_bytes[norm].tolist() == [4 * 24, 4 * ROWS, 4 * ROWS]
    assert [ops[c] for c in table.consumers_of(norm[1])] == [":backward.native_layer_norm_backward"]


def test_layers(setting: Setting) -> None:
    table = setting.layer_table(ROWS)
    assert (table.paths, table.firsts) == (("up", "down"), ("up:mm", "down:addmm"))
    assert (table.forward_s.tolist(), table.backward_s.tolist()) == ([384, 192], [384, 384])
    assert table.recompute_s.tolist() == [0, 0]
    # Kept are the result of relu, which it needs again, and that of the network, whose square is the loss.
    assert table.kept_bytes.tolist() == [4 * 48, 4 * 12]
    assert table.output_bytes.tolist() == [4 * 48, 0]
    assert table.param_elements.tolist() == table.trained_elements.tolist() == [32, 18]


def test_layers_of_one_rank(setting: Setting) -> None:
    """The first product cut by columns, the second by rows: half of both, and a sum over two ranks."""
    place = parse_cluster("1x2xT4")
    here = replace(setting, cluster=place)
    plan = resized(here, first_plan(here), tensor=2)
    cut = {"up.weight": Shard(0), "down.weight": Shard(1)}
    table = here.rank_layer_table(plan.with_placements("tensor", cut))
    sum_s = collective_cost(place, "all_reduce", (0, 1), 4 * 12).seconds
    assert table.forward_s.tolist() == [192, pytest.approx(96 + sum_s, abs=1e-9)]
    assert table.kept_bytes.tolist() == [4 * 24, 4 * 12]
    assert table.param_elements.tolist() == [16, 8 + 2]
    whole = here.rank_layer_table(plan)
    assert whole.forward_s.tolist() == setting.layer_table(ROWS).forward_s.tolist()


def test_the_same_setting_of_another_model(setting: Setting) -> None:
    other = Model(
        "square", nn.Linear(4, 4), lambda net, batch: net(batch["x"]).sum(), {"x": torch.zeros(ROWS, 4)}
    )
    found = setting.of_model(other)
    assert (found.cluster, found.op_seconds) == (setting.cluster, setting.op_seconds)
    # No layer holds its parameters, and the weight is read through a transposed view.
    assert found.layer_table(ROWS).param_elements.tolist() == [20]


def test_tables_are_of_the_rows_that_are_asked_for(setting: Setting) -> None:
    assert 2 * setting.op_table(ROWS // 2).flops.sum() == setting.op_table(ROWS).flops.sum()
    assert (2 * setting.layer_table(ROWS // 2).kept_bytes).tolist() == setting.layer_table(
        ROWS
    ).kept_bytes.tolist()


def test_a_plan_is_simulated_as_it_would_run_and_once(setting: Setting) -> None:
    plan = first_plan(setting)
    found = setting.simulate(plan)
    alone = simulate_task(plan, Task(setting.task.model))
    assert (found.step_s, found.peak_memory_bytes) == (alone.step_s, alone.peak_memory_bytes)
    assert setting.simulate(replace(plan, made_by=("someone",), reasons=("why",))) is found
    assert setting.simulate(plan.with_recomputed({":relu"})) is not found


def test_tasks_are_timed(setting: Setting) -> None:
    timer = setting.task_timer([0, 1, 0], [-1, 0, -1])
    assert timer([1.0, 2.0, 4.0]).tolist() == [1.0, 3.0, 5.0]
    assert timer([1.0, 2.0, 4.0], priority=[1, 0, 0]).tolist() == [5.0, 7.0, 4.0]
