"""PyTorch Distributed (arXiv 2006.15704): gradients travel in buckets while the backward pass goes on."""

from counting import planned, small_gpt

from trainyard.program import spmd


def test_buckets_leave_before_the_backward_pass_ends() -> None:
    plan, lowered = planned(small_gpt(4, rows=4), "data_parallel(bucket_bytes=1000000)", "1x4xA100-80G")
    (stage,) = lowered.stages
    ops = [n for n in stage.segments["B"].graph.nodes if n.op == "call_function"]
    sent = [i for i, n in enumerate(ops) if n.target is spmd.accumulate_grads]
    assert len(sent) == len(stage.buckets) > 2
    # Section 3.2.3: communication starts with the first full bucket, long before the last gradient.
    assert sent[0] < len(ops) // 2
    # Section 3.2.2: buckets are filled up to their size, and each parameter is in exactly one.
    sizes = [sum(b.sizes) * 4 for b in stage.buckets]
    assert (
        max(s for s, b in zip(sizes, stage.buckets, strict=True) if len(b.paths) > 1)
        <= plan.traffic.bucket_bytes
    )
    paths = [p for b in stage.buckets for p in b.paths]
    assert sorted(paths) == sorted(lowered.params)


def test_each_replica_takes_its_share_of_rows() -> None:
    plan, lowered = planned(small_gpt(1, rows=8), "data_parallel", "1x4xA100-80G")
    assert plan.mesh.size("data") == 4
    forward = lowered.stages[0].segments["F"]
    taken = zip(forward.graph.find_nodes(op="placeholder"), forward.inputs, strict=True)
    (tokens,) = (node for node, slot in taken if slot.name == "batch.tokens")
    assert tokens.meta["val"].shape[0] == 2
