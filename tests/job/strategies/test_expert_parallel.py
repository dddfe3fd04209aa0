"""GShard (arXiv 2006.16668): experts dealt out over devices, two all-to-alls around them."""

from counting import collectives, planned

from trainyard.zoo.registry import build


def test_two_all_to_alls_forward() -> None:
    # Section 3.2, algorithm 2: dispatch and combine reshard between groups and experts.
    _, lowered = planned(build("moe-tiny"), "expert_parallel", "1x2xA100-80G")
    assert collectives(lowered, "data", at_least=64)["all_to_all", "F"] == 2


def test_memory_per_device_is_constant_in_the_number_of_experts() -> None:
    # Section 2.2: every device holds E / D experts; everything else is replicated.
    _, whole = planned(build("moe-tiny"), "", "1x1xA100-80G")
    for degree in (2, 4):
        _, lowered = planned(build("moe-tiny"), f"expert_parallel(degree={degree})", "1x4xA100-80G")
        for path, param in whole.params.items():
            share = degree if path.startswith("blocks.1.experts.") and "router" not in path else 1
            assert lowered.params[path].numel == param.numel // share


def test_experts_are_not_reduced() -> None:
    _, lowered = planned(build("moe-tiny"), "expert_parallel", "1x2xA100-80G")
    (stage,) = lowered.stages
    for bucket in stage.buckets:
        experts = [p for p in bucket.paths if p in ("blocks.1.experts.up", "blocks.1.experts.down")]
        assert bucket.reduced == (not experts)
