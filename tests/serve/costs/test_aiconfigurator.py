"""Kernel times from the Parquet tables of aiconfigurator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainyard.hardware.parse import parse_cluster
from trainyard.serve.costs.kernels import Attention, Experts, Product, StepGraph
from trainyard.serve.costs.predicted import PredictedKernels
from trainyard.serve.costs.tables.aiconfigurator import AiconfiguratorKernels
from trainyard.serve.deploy import served_model
from trainyard.serve.errors import ServeError

pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet files")
_ATTENTION = Attention(32, 8, 128)
_SHAPE = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0}
_SHAPE |= {"kv_cache_dtype": "bfloat16"}


def _write(root: Path, family: str, version: str, table: str, rows: list[dict[str, object]]) -> None:
    from pyarrow import parquet

    folder = root / "systems" / "data" / "h100_sxm" / family / "vllm" / version
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{table}.parquet")


@pytest.fixture
def package(tmp_path):
    """A few rows in the form of the package's tables; latencies in ms."""
    gemm = [
        {"gemm_dtype": kind, "m": m, "n": n, "k": k, "latency": scale * m * n * k * 1e-12}
        for kind, scale in (("bfloat16", 2.0), ("fp8", 1.0))
        for m in (1, 16, 256) for n in (1024, 4096) for k in (1024, 4096)
    ]  # fmt: skip
    shape = _SHAPE
    context = [
        shape | {"batch_size": 1, "isl": isl, "latency": 1e-9 * isl**2 + 1e-3}
        for isl in (1, 1024, 2048, 4096)
    ]
    context.append(shape | {"window_size": 128, "batch_size": 1, "isl": 1024, "latency": 99.0})
    decode = [
        shape | {"batch_size": b, "step": s, "latency": 1e-6 * b * s}
        for b in (1, 64)
        for s in (1, 1023, 4095)
    ]
    reduce = [
        {"num_gpus": 4, "message_size": size, "latency": latency}
        for size, latency in ((1024, 0.005), (1024, 0.022), (1048576, 0.02))
    ]
    mixture = {"moe_dtype": "bfloat16", "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128}
    moe = [
        mixture
        | {
            "moe_tp_size": tp,
            "moe_ep_size": ep,
            "distribution": kind,
            "num_tokens": n,
            "latency": 1e-3 * ms * n,
        }
        for tp, ep, kind, ms in ((4, 1, "balanced", 2), (1, 4, "balanced", 3), (4, 1, "power_law_1.2", 9))
        for n in (1, 64)
    ]
    _write(tmp_path, "moe", "0.24.0", "moe_perf", moe)
    _write(tmp_path, "gemm", "0.9.0", "gemm_perf", gemm[:1])
    _write(tmp_path, "gemm", "0.24.0", "gemm_perf", gemm)
    _write(tmp_path, "attention", "0.24.0", "context_attention_perf", context)
    _write(tmp_path, "attention", "0.24.0", "generation_attention_perf", decode)
    _write(tmp_path, "comm", "0.24.0", "custom_allreduce_perf", reduce)
    slower = [row | {"latency": 10 * row["latency"]} for row in reduce]
    _write(tmp_path, "comm", "0.19.0", "custom_allreduce_perf", slower)
    return tmp_path


def _kernels(
    package: Path, num_devices: int = 1, weights: str = "bfloat16", backend: str = "vllm"
) -> AiconfiguratorKernels:
    others = PredictedKernels(parse_cluster("1x4xH100"), num_devices)
    return AiconfiguratorKernels(package, "H100", num_devices, weights, others, backend)


def test_a_table_without_windows_is_of_attention_to_all_tokens(package):
    """As those of A100."""
    for table in ("context_attention_perf", "generation_attention_perf"):
        path = package / f"systems/data/h100_sxm/attention/vllm/0.24.0/{table}.parquet"
        rows = pyarrow.parquet.read_table(path).to_pylist()
        plain = [{name: v for name, v in row.items() if name != "window_size"} for row in rows]
        _write(package, "attention", "0.24.0", table, [row for row in plain if row["latency"] < 99.0])
    kernels = _kernels(package)
    assert kernels.decode_attention_s(_ATTENTION, 64, np.array([1023.0])) == pytest.approx(64 * 1023e-9)
    windowed, seen = _ATTENTION._replace(window=128), np.array([1023.0])
    described = kernels.others.decode_attention_s(windowed, 64, seen)
    assert kernels.decode_attention_s(windowed, 64, seen) == pytest.approx(described)


def test_a_server_that_is_not_there_is_told_with_those_that_are(package):
    others = PredictedKernels(parse_cluster("1x4xH100"), 1)
    with pytest.raises(ServeError, match="after a colon a server that it has: vllm"):
        AiconfiguratorKernels(package, "H100", 1, "bfloat16", others, "vlm")


def test_decodes_go_on_beyond_the_longest_sequence_that_was_measured(package):
    """They read all keys and values: twice as long takes twice as long."""
    found = _kernels(package).decode_attention_s(_ATTENTION, 64, np.array([4095.0, 8190.0, 65520.0]))
    assert found == pytest.approx([64e-9 * 4095, 64e-9 * 8190, 64e-9 * 65520], rel=1e-6)


def test_products_are_those_of_the_newest_version(package):
    assert _kernels(package).product_s(16, Product(4096, 1024)) == pytest.approx(2e-15 * 16 * 4096 * 1024)
    between = _kernels(package).product_s(64, Product(2048, 2048))
    assert between == pytest.approx(2e-15 * 64 * 2048 * 2048, rel=1e-6)


def test_a_product_in_8_bits_has_its_operand_brought_to_8_bits(package):
    measured_s = 1e-15 * 16 * 4096 * 1024
    assert _kernels(package, weights="float8").product_s(16, Product(4096, 1024)) > measured_s


def test_a_chunk_is_the_part_of_a_prompt_after_what_is_cached(package):
    kernels = _kernels(package)
    whole_s = kernels.prompt_attention_s(_ATTENTION, [(2048, 0)])
    assert whole_s == pytest.approx(1e-3 * (1e-9 * 2048**2 + 1e-3))
    assert kernels.prompt_attention_s(_ATTENTION, [(1024, 1024)]) == pytest.approx(0.75 * whole_s)


def test_decodes_by_number_and_length(package):
    found = _kernels(package).decode_attention_s(_ATTENTION, 64, np.array([1023.0, 4095.0]))
    assert found == pytest.approx([1e-9 * 64 * 1023, 1e-9 * 64 * 4095])


def test_experts_that_are_cut_and_experts_that_are_dealt_out(package):
    """Tokens are dealt out by a power law where that was measured, and else equally."""
    kernels = _kernels(package, 4)
    assert kernels.experts_s(64, Experts(128, 8, 2048, 192, True)) == pytest.approx(9 * 64e-6)
    assert kernels.experts_s(64, Experts(128, 8, 2048, 768, True, num_devices=4)) == pytest.approx(192e-6)


def test_attention_over_a_window_is_measured_by_itself_and_over_latent_vectors_predicted(package):
    kernels, latent = _kernels(package), Attention(16, 16, 160, latent=512, rotary=64)
    assert kernels.prompt_attention_s(_ATTENTION._replace(window=128), [(1024, 0)]) == pytest.approx(99e-3)
    assert kernels.prompt_attention_s(latent, [(64, 0)]) == kernels.others.prompt_attention_s(
        latent, [(64, 0)]
    )


def test_backward_passes_were_not_measured(package):
    with pytest.raises(ServeError, match="has no times of a backward pass, which requests that train need"):
        _kernels(package).backward_attention_s(_ATTENTION, [(1024, 0)])


def test_of_an_all_reduce_the_time_in_a_recorded_graph_counts(package):
    assert _kernels(package, 4).all_reduce_s(1024) == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("version", "seconds"), [("", 5e-6), ("/0.24.0", 5e-6), ("/0.19.0", 50e-6), ("/0.9.0", 50e-6)]
)
def test_the_version_that_is_meant_or_the_newest_before_it(package, version, seconds):
    assert _kernels(package, 4, backend=f"vllm{version}").all_reduce_s(1024) == pytest.approx(seconds)


def test_a_newest_version_with_few_shapes_is_read_last(package):
    """Of the same op; what only that version has comes from it."""
    wide = {"gemm_dtype": "bfloat16", "m": 16, "k": 4096}
    _write(package, "gemm", "0.25.0rc1", "gemm_perf", [wide | {"n": 4096, "latency": 7.0}])
    assert _kernels(package).product_s(16, Product(4096, 1024)) == pytest.approx(2e-15 * 16 * 4096 * 1024)
    assert _kernels(package).versions(["gemm"]) == "vllm/0.24.0"
    named = _kernels(package, backend="vllm/0.25.0rc1")
    assert named.product_s(16, Product(4096, 4096)) == pytest.approx(7e-3)
    only_there = {**_SHAPE, "num_heads": 48, "batch_size": 1, "step": 1, "latency": 3.0}
    _write(package, "attention", "0.25.0rc1", "generation_attention_perf", [only_there])
    found = _kernels(package).decode_attention_s(Attention(48, 8, 128), 1, np.array([1.0]))
    assert found == pytest.approx(3e-3)


def test_what_no_table_has_is_described_and_counted(package):
    kernels = _kernels(package, 4)
    others, seen = kernels.others, np.array([500.0])
    heads, experts, far = Attention(12, 4, 128), Experts(64, 6, 2048, 192, True), Product(4096, 8193)
    assert kernels.decode_attention_s(heads, 8, seen) == pytest.approx(
        others.decode_attention_s(heads, 8, seen)
    )
    assert kernels.experts_s(64, experts) == others.experts_s(64, experts)
    assert kernels.product_s(16, far) == others.product_s(16, far)
    assert kernels.product_s(16, far._replace(columns=8192)) != others.product_s(
        16, far._replace(columns=8192)
    )
    graph = StepGraph(
        ((far, 2), (Product(4096, 1024), 5)),
        ((heads, 3), (_ATTENTION, 4)),
        ((64, 6),),
        ((4096, 7),),
        ((4096, 1),),
        4096,
        0,
        ((experts, 8),),
    )
    assert kernels.described(graph) == {
        "product": 2, "attention": 3, "experts": 8, "collective": 1, "elementwise": 6
    }  # fmt: skip


@pytest.mark.parametrize("version", ["9.9", "0.23.9", "../sglang", "."])
def test_a_version_that_is_not_there_is_told_with_those_that_are(package, version):
    with pytest.raises(
        ServeError,
        match=r"no kernels of vllm/.* on H100; it has vllm/0.9.0, vllm/0.19.0, vllm/0.24.0; name one",
    ):
        _kernels(package, backend=f"vllm/{version}")


def test_the_source_says_which_version_was_read_and_how_much_was_not_measured(package):
    cluster = parse_cluster("1x4xH100")
    newest, older = (
        served_model("llama3-8b", cluster, tensor_parallel=4, kernels=Path(f"{package}{named}"))
        for named in ("", ":vllm/0.19.0")
    )
    assert newest.source.startswith("kernels of vllm/0.24.0 measured on H100, in ")
    assert older.source.startswith(
        "kernels of vllm (gemm 0.24.0, attention 0.24.0, comm 0.19.0) measured on "
    )
    described = dict(newest.described)
    assert (described["attention"], described["collective"]) == (32, 1)
    assert f"not measured but described: {sum(described.values())} kernels of a step (" in newest.source
    alone = served_model("llama3-8b", cluster)
    assert alone.source == "predicted from the description of H100"
    assert "product" in dict(alone.described)


def test_tables_and_profiles_go_together(package, tmp_path):
    """Layers of the profile, and collectives of the tables."""
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "profile_layers.csv").write_text(
        "gpu,model,tp,layer,per,count,time_us\nH100,M-8B,4,qkv_proj,tokens,1,1\nH100,M-8B,4,qkv_proj,tokens,9,9\n"
    )
    (folder / "profile_attention.csv").write_text(
        "gpu,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
        "H100,M-8B,4,16,16,0,0,4\nH100,M-8B,4,0,0,1,16,5\n"
    )
    cluster = parse_cluster("1x4xH100")
    both = Path(f"{folder}:M-8B,{package}:vllm/0.19.0")
    with_tables, alone = (
        served_model("llama3-8b", cluster, tensor_parallel=4, kernels=each)
        for each in (both, Path(f"{folder}:M-8B"))
    )
    assert with_tables.step_time.costs.tokens_s(9) == pytest.approx(32 * 9e-6 + 65 * 50e-6 * 36**0.2)
    assert alone.step_time.costs.tokens_s(9) < with_tables.step_time.costs.tokens_s(9)
    assert with_tables.source.startswith("layers of M-8B measured on H100, in ")
    assert "collectives: kernels of vllm/0.19.0 measured on H100" in with_tables.source
    with pytest.raises(ServeError, match="two folders of the same kind"):
        served_model("llama3-8b", cluster, tensor_parallel=4, kernels=Path(f"{package},{package}"))


def test_what_the_tables_do_not_have_is_told(package, tmp_path):
    with pytest.raises(ServeError, match="no tables of V100"):
        AiconfiguratorKernels(package, "V100", 1, "bfloat16", _kernels(package).others)
    with pytest.raises(ServeError, match="no products of float32"):
        _kernels(package, weights="float32")
    with pytest.raises(ServeError, match="no tables of kernels"):
        _kernels(tmp_path / "systems" / "data" / "h100_sxm")
