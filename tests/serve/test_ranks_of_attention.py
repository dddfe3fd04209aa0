"""Ranks of attention that compute each step together."""

from __future__ import annotations

import numpy as np
import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.program.placement import Shard
from trainyard.serve.batch import Batch
from trainyard.serve.cache.block_cache import BlockCache
from trainyard.serve.catalog import parse_policies
from trainyard.serve.costs.model_step_time import ModelStepTime
from trainyard.serve.data_parallel import DataParallelInstance
from trainyard.serve.deploy import deploy, served_model
from trainyard.serve.errors import ServeError
from trainyard.serve.instance import Instance
from trainyard.serve.requests.request import Request, TracedRequest
from trainyard.serve.simulate_requests import simulate_requests

_H100 = parse_cluster("1x8xH100")


class _Costs:
    """A token takes 1 s on its rank, and a hundredth in the experts, which compute those of all ranks."""

    def tokens_s(self, num):
        return float(num)

    def sequences_s(self, num):
        return 0.0

    def experts_s(self, num):
        return 0.01 * num

    def attention_s(self, chunks, num, mean_tokens):
        return np.zeros(len(mean_tokens))


def _instance(num_ranks: int, policy: str = "vllm", num_blocks: int = 64) -> DataParallelInstance:
    [(_, made)] = parse_policies(policy)
    return DataParallelInstance([Instance(made, BlockCache(num_blocks, 16)) for _ in range(num_ranks)])


def _requests(*lengths: tuple[int, int], gap_s: float = 0.0) -> list[TracedRequest]:
    return [
        TracedRequest(Request(str(i), i * gap_s, prompt, 64), output)
        for i, (prompt, output) in enumerate(lengths)
    ]


def test_a_step_takes_as_long_as_its_slowest_rank_and_the_experts_compute_all_tokens():
    seen: list[tuple[float, Batch]] = []
    results = simulate_requests(
        _requests((100, 3), (20, 3)),
        [_instance(2)],
        ModelStepTime(_Costs()),
        seen=lambda number, start_s, batch: seen.append((start_s, batch)),
    )
    starts = [start_s for start_s, _ in seen]
    assert np.diff(starts) == pytest.approx([100 + 1.2, 1 + 0.02])
    assert [len(batch.launches) for _, batch in seen] == [2, 2, 2]
    assert [each.finished_s for each in results.served] == pytest.approx([101.2 + 2 * 1.02] * 2)


def test_requests_go_where_the_fewest_are_and_ranks_have_caches_of_their_own():
    instance = _instance(2, num_blocks=8)
    results = simulate_requests(_requests(*[(100, 20)] * 6), [instance], ModelStepTime(_Costs()))
    assert len(results.served) == 6
    assert [rank.cache.num_free for rank in instance.ranks] == [8, 8]
    # A rank has room for one of them at a time, so three waves on two ranks.
    assert len({round(each.first_token_s, 6) for each in results.served}) == 3


def test_a_rank_without_requests_computes_nothing():
    seen: list[Batch] = []
    simulate_requests(
        _requests((10, 2)),
        [_instance(3)],
        ModelStepTime(_Costs()),
        seen=lambda n, s, batch: seen.append(batch),
    )
    assert [len(batch.launches) for batch in seen] == [1, 1]


@pytest.mark.parametrize("policy", ["vllm", "vllm_v0", "sarathi + vtc", "orca(max_requests=3)"])
def test_one_rank_is_an_instance(policy):
    requests = _requests(*[(30 + 7 * i, 5 + i % 9) for i in range(40)], gap_s=20.0)
    [(_, made)] = parse_policies(policy)
    alone = simulate_requests(
        requests, [Instance(made, BlockCache(64, 16))], ModelStepTime(_Costs()), one_by_one=True
    )
    ranks = simulate_requests(requests, [_instance(1, policy)], ModelStepTime(_Costs()))
    assert [(each.request.name, each.finished_s) for each in alone.served] == [
        (each.request.name, each.finished_s) for each in ranks.served
    ]


def test_what_is_refused_by_a_rank_is_refused():
    results = simulate_requests(_requests((5000, 2), (10, 2)), [_instance(2)], ModelStepTime(_Costs()))
    assert [each.request.name for each in results.refused] == ["0"]
    assert [each.request.name for each in results.served] == ["1"]


@pytest.mark.slow
def test_ranks_share_the_weights_of_experts_and_nothing_else():
    alone = served_model("qwen3-30b-a3b", _H100)
    shared = served_model("qwen3-30b-a3b", _H100, data_parallel=2)
    experts = 48 * 128 * 3 * 2048 * 768
    assert alone.weight_bytes - shared.weight_bytes == experts  # half of them, of 2 bytes
    assert shared.cache_bytes_per_token == alone.cache_bytes_per_token
    assert shared.num_devices == 2
    found = deploy("qwen3-30b-a3b", _H100, data_parallel=4, tensor_parallel=2)
    assert str(found) == "1 replica of qwen3-30b-a3b with tp 2, dp 4"
    plan = found.placement().groups[0].replicas[0].plan
    assert plan is not None
    assert plan.placements["blocks.*.mlp.gate"] == {"tensor": Shard(0)}  # whole experts
    [(_, policy)] = parse_policies("vllm")
    assert [len(each.ranks) for each in found.instances(policy)] == [4]


def test_tokens_of_ranks_go_to_the_experts_and_come_back():
    alone = served_model("qwen3-30b-a3b", _H100).step_time.costs
    shared = served_model("qwen3-30b-a3b", _H100, data_parallel=2).step_time.costs
    assert shared.tokens_s(64) == alone.tokens_s(64)
    assert shared.dispatched_s(128) == pytest.approx(2 * 48 * shared.between_ranks.all_gather_s(128 * 2048))
    # Twice the tokens on twice the devices, each of which reads half of the weights.
    in_experts_s = shared.experts_s(8192) - shared.dispatched_s(8192)
    assert 0.5 * alone.experts_s(4096) < in_experts_s < alone.experts_s(4096)


def test_what_ranks_cannot_be_is_told():
    with pytest.raises(
        ServeError, match="llama3-8b has no mixture of experts that ranks could share; use replicas"
    ):
        served_model("llama3-8b", _H100, data_parallel=2)
    with pytest.raises(ServeError, match="pp or dp, not both"):
        served_model("mixtral-8x7b", _H100, data_parallel=2, pipeline_stages=2)
    with pytest.raises(ServeError, match="128 experts cannot be dealt out to 3 devices"):
        served_model("qwen3-30b-a3b", _H100, data_parallel=3)
    with pytest.raises(ServeError, match="pipeline stages; use one of the two"):
        DataParallelInstance([Instance(parse_policies("vllm")[0][1], BlockCache(4, 16), num_stages=2)])
