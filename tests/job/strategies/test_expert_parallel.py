"""GShard (arXiv 2006.16668): experts dealt out over devices, two all-to-alls around them."""

import pytest
from captured import tiny
from counting import collectives, planned

from trainyard.job.plan import PlanError


def test_two_all_to_alls_forward() -> None:
    # Section 3.2, algorithm 2: dispatch and combine reshard between groups and experts.
    _, lowered = planned(tiny("moe"), "expert_parallel", "1x2xA100-80G")
    assert collectives(lowered, "data", at_least=64)["all_to_all", "F"] == 2


def test_memory_per_device_is_constant_in_the_number_of_experts() -> None:
    # Section 2.2: every device holds E / D experts; everything else is replicated.
    _, whole = planned(tiny("moe"), "", "1x1xA100-80G")
    for degree in (2, 4):
        _, lowered = planned(tiny("moe"), f"expert_parallel(degree={degree})", "1x4xA100-80G")
        shares = {
            path: degree if path.startswith("blocks.1.experts.") and "router" not in path else 1
            for path in whole.params
        }
        assert set(shares.values()) == {1, degree}
        for path, param in whole.params.items():
            assert lowered.params[path].numel == param.numel // shares[path]


def test_experts_are_not_reduced() -> None:
    _, lowered = planned(tiny("moe"), "expert_parallel", "1x2xA100-80G")
    (stage,) = lowered.stages
    assert {bucket.reduced for bucket in stage.buckets} == {True, False}
    for bucket in stage.buckets:
        experts = [p for p in bucket.paths if p in ("blocks.1.experts.up", "blocks.1.experts.down")]
        assert bucket.reduced == (not experts)


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ("gpipe(stages=2, microbatches=2)", 2),
        ("megatron(tensor=1, pipeline=2, data=2, microbatch_rows=2)", 2),
        ("data_parallel(degree=4)", 4),
        ("zero(stage=2)", 2),
    ],
)
def test_experts_stay_dealt_out_on_the_mesh_of_a_later_strategy(later: str, share: int) -> None:
    _, whole = planned(tiny("moe", 8), "", "1x1xA100-80G")
    _, lowered = planned(tiny("moe", 8), f"expert_parallel(degree=2) + {later}", "1x4xA100-80G")
    for path in ("blocks.1.experts.up", "blocks.1.experts.down"):
        assert lowered.params[path].numel == whole.params[path].numel // share


def test_experts_that_do_not_divide_over_a_later_mesh_are_refused() -> None:
    with pytest.raises(PlanError, match=r"experts.up .* cannot lie as S0 on the 8 ranks of axis 'data'"):
        planned(tiny("moe", 8), "expert_parallel(degree=2) + data_parallel(degree=8)", "1x8xA100-80G")
