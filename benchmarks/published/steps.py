"""Training steps that others have measured, each with the model, cluster and strategies that describe it.

Nothing here is fitted to a row. What a source does not say of its rows is left out and counted, but for what its program
does wherever it is used (named beside the source).
"""

from __future__ import annotations

import csv
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainyard.job.reproduce import megatron, selective_recompute
from trainyard.job.reproduce.simulated import gradients_at_the_end, megatron_text
from trainyard.program.model import Model
from trainyard.zoo import gpt, llama, load_model_file, resnet
from trainyard.zoo.bert import BertConfig
from trainyard.zoo.bert import build as build_bert
from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.hugging_face import read_config
from trainyard.zoo.llama import LlamaConfig
from trainyard.zoo.registry import ENTRIES
from trainyard.zoo.resnet import ResNetConfig

Row = dict[str, str]
LeftOut = Counter[str]
_MOST_LAYERS, _MINUTES = 100, "its simulation takes minutes; tests marked `long` make it"


@dataclass(frozen=True)
class Step:
    """A step as it was measured, and what is simulated for it.

    Attributes
    ----------
    source, run : where it was published, and which row it is.
    kind : of model: GPT, Llama, BERT or ResNet.
    build, sizes, rows : make the model; rows of the batch of a step on all devices.
    cluster, strategies : as ``trainyard plan`` reads them.
    seconds, gib : of a step, and memory of a device as PyTorch's allocator counts what is allocated; None where they
        were not measured.
    tf32 : whether products of float32 are computed in TensorFloat-32.
    model : whose measured plans are compared with each other; "" for none.
    """

    source: str
    run: str
    kind: str
    build: Callable[[str, Any, int], Model]
    sizes: Any
    rows: int
    cluster: str
    strategies: str
    seconds: float | None = None
    gib: float | None = None
    dtype: str = "bfloat16"
    tf32: bool = False
    model: str = ""


def _table(path: Path) -> list[Row]:
    """Rows of a table; lines that begin with # say what it is."""
    with path.open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def vtrain_step(row: Row) -> Step:
    """A run of vTrain's authors: Megatron-DeepSpeed, each layer recomputed, gradients not in buckets, 4 x 200 Gb/s."""
    tensor, pipeline, data, layers = (int(row[name]) for name in ("tp", "pp", "dp", "layers"))
    gpus, rows = int(row["num_gpus"]), int(row["global_batch"])
    sizes = GPTConfig(51200, int(row["seq_len"]), layers, int(row["hidden"]), int(row["heads"]))
    is_large = gpus > 8
    strategies = megatron_text(
        *(tensor, pipeline, data, int(row["micro_batch"])),
        *(gradients_at_the_end(data), f"sublinear(segments={layers})"),
    )
    return Step(
        f"vTrain, {'several nodes' if is_large else 'one node'}",
        ",".join(row.values()),
        "GPT",
        gpt.build,
        sizes,
        rows,
        f"{gpus // 8}x8xA100-80G@4x200Gb" if is_large else f"1x{gpus}xA100-80G",
        strategies,
        float(row["iter_ms"]) / 1e3,
        model=f"{row['params_b']}B on {gpus} GPUs" if is_large else "",
    )


def vtrain(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Every so many of the runs, of one node ten times as few."""
    for name, nodes, step in (("single", "one node", 10 * every), ("multi", "several nodes", every)):
        rows = _table(folder / f"vtrain/iter_time_{name}_node_a100.csv")
        for row in rows[::step]:
            yield vtrain_step(row)
        if step > 1:
            left_out[f"vTrain, {nodes}: one of {step} runs is simulated"] += len(rows) - len(rows[::step])


def megatron_a100(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Table 1 of arXiv 2104.04473, with microbatches and interleaving of its scripts."""
    for row in _table(folder / "megatron_scaling/a100_weak_scaling.csv"):
        (case,) = (each for each in megatron.TABLE_1 if each.layers == int(row["layers"]))
        if case.layers > _MOST_LAYERS:
            left_out[f"Megatron-LM, A100: {_MINUTES}"] += 1
            continue
        seconds = case.flops / float(row["tflops_per_gpu"]) / case.gpus / 1e12
        cluster = f"{case.gpus // 8}x8xA100-80G"
        yield Step(
            *("Megatron-LM, A100", row["model"], "GPT", gpt.build, case.config, case.batch),
            *(cluster, case.strategies, seconds),
        )
    for name in ("h100_weak_scaling", "a100_ptd_300b_tokens", "a100_mtnlg_530b"):
        num = len(_table(folder / f"megatron_scaling/{name}.csv"))
        left_out[f"Megatron-LM: {name}: the table says no microbatches"] += num


def korthikanti(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Table 5 of arXiv 2205.05198."""
    for row in _table(folder / "calculon_megatron/iteration_time_a100.csv"):
        name = row["model"].split("-")[1]
        case = selective_recompute.TABLE_5[name]
        if case.num_layers > _MOST_LAYERS:
            left_out[f"Korthikanti et al., A100: {_MINUTES}"] += 1
            continue
        strategies = {"full": case.full, "seqsel": case.present}[row["recompute_mode"]]
        config = ENTRIES[case.model].config
        yield Step(
            *("Korthikanti et al., A100", f"{name} {row['recompute_mode']}", "GPT", gpt.build, config),
            *(int(row["global_batch"]), f"{case.pipeline}x8xA100-80G", strategies, float(row["iter_s"])),
        )


_B200 = {
    "llama3_70b": LlamaConfig(hidden=8192, heads=64, ffn=28672),
    "llama3_405b": LlamaConfig(hidden=16384, heads=128, ffn=53248),
}


def b200(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Eight B200 with Megatron-LM core 0.14, measured for SimuMax: nothing is hidden, nothing recomputed."""
    source = "SimuMax, B200"
    for row in _table(folder / "simumax_b200/measured.csv"):
        tensor, pipeline, data = int(row["tp"]), int(row["pp"]), int(row["dp"])
        if row["model"] not in _B200:
            left_out[f"{source}: experts with a capacity and latent attention"] += 1
        elif row["cp"] != "1":
            left_out[f"{source}: sequences that are cut over devices"] += 1
        else:
            sizes = replace(_B200[row["model"]], layers=int(row["layers"]), context=int(row["seq"]))
            more = (*(("sequence_parallel",) if tensor > 1 else ()), "zero(stage=1)")
            yield Step(
                *(source, row["case"], "Llama", llama.build, sizes, data * int(row["microbatches"])),
                *("1x8xB200", megatron_text(tensor, pipeline, data, 1, *more)),
                *(float(row["measured_ms"]) / 1e3, float(row["measured_peak_allocated_gib"])),
            )


_DGX = {
    "NVIDIA DGX A100 (8x A100 80GB)": "A100-80G",
    "NVIDIA DGX-1 With 32G": "V100-32G",
}


def nvidia_bert(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Pre-training of BERT-large by NVIDIA's PyTorch example on one machine: the batch is cut into microbatches."""
    source = "NVIDIA examples"
    for row in _table(folder / "nvidia_dle/training_throughput.csv"):
        machine = row["section"].removeprefix("Pre-training ")
        if row["model_readme"] != "PyTorch/LanguageModeling/BERT":
            zoo = ("BERT", "RN50v1.5", "resnet50v1.5", "GNMT", "DLRM")
            if row["model_readme"].endswith(zoo):
                left_out[f"{source}: {row['model_readme']}: no microbatch, length or tables are given"] += 1
            else:
                left_out[f"{source}: no model of the zoo"] += 1
        elif machine not in _DGX or " / " not in row["batch_as_printed"]:
            left_out[f"{source}: PyTorch BERT: no microbatch or no machine of a known kind is given"] += 1
        else:
            # "TF32 and mixed / TF32 and mixed": rows of a microbatch, and of a step, on each device.
            is_mixed = row["precision"] == "mixed"
            microbatch, rows = (
                int(part.split(" and ")[is_mixed]) for part in row["batch_as_printed"].split(" / ")
            )
            gpus, length = int(row["gpus"]), int(row["seq_len"])
            sizes = BertConfig(30528, length, 24, 1024, 16, predictions=20 if length == 128 else 80)
            yield Step(
                *(source, f"{machine}, {gpus}, {row['precision']}, {length}", "BERT", build_bert, sizes),
                *(rows * gpus, f"1x{gpus}x{_DGX[machine]}", megatron_text(1, 1, gpus, microbatch)),
                seconds=rows * gpus / float(row["throughput"]),
                dtype="float16" if is_mixed else "float32",
                tf32=row["precision"] == "TF32",
            )


_LAMBDA = {"A100 80GB SXM4": "A100-80G", "H100 80GB SXM5": "H100", "RTX 4090": "RTX4090"}


def lambda_resnet(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """ResNet-50 by NVIDIA's PyTorch example on GPUs of one machine; on these GPUs float32 is TensorFloat-32."""
    source = "Lambda"
    for row in _table(folder / "lambda_benchmark/pytorch_training_throughput.csv"):
        gpus, rows = int(row["num_gpus"]), int(row["total_or_per_gpu_batch_as_published"])
        gpu = row["gpu"].removeprefix(f"{gpus}x ")
        if row["model"] != "resnet50":
            left_out[f"{source}: no model of the zoo, or no length of its rows"] += 1
        elif gpu not in _LAMBDA:
            left_out[f"{source}: another machine of the same kind, or none that is known"] += 1
        elif gpus > 1:
            left_out[f"{source}: several devices, whose large batches take long to capture"] += 1
        else:
            is_half = row["precision"] == "fp16"
            yield Step(
                *(source, f"{row['gpu']}, {row['precision']}", "ResNet", resnet.build, ResNetConfig(), rows),
                *(f"1x{gpus}x{_LAMBDA[gpu]}", "data_parallel", rows / float(row["throughput"])),
                dtype="float16" if is_half else "float32",
                tf32=not is_half,
            )


def posted_gpt2(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Steps of nanoGPT that its users posted."""
    sizes = {
        "gpt2-124M": GPTConfig(50304, 1024, 12, 768, 12, dropout=0.0),
        "shakespeare-10.7M": GPTConfig(65, 256, 6, 384, 6, dropout=0.2),
    }
    for row in _table(folder / "nanogpt_step_times.csv"):
        devices, microbatch = int(row["devices"]), int(row["rows_per_microbatch"])
        device = {"A100": "A100-40G", "RTX4090": "RTX4090"}.get(row["device"])
        if device is None:
            left_out["nanoGPT: a device that is not known"] += 1
            continue
        yield Step(
            *("nanoGPT", f"{row['source']} {row['model']}", "GPT", gpt.build, sizes[row["model"]]),
            *(devices * microbatch * int(row["accumulate"]), f"1x{devices}x{device}"),
            *(megatron_text(1, 1, devices, microbatch), float(row["step_ms"]) / 1e3),
            dtype=row["dtype"],
        )


def posted_throughput(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Tokens a second of fully sharded training, with the whole configuration."""
    for row in _table(folder / "llm_throughput.csv"):
        source = row["source"].partition("#")[0]
        if row["plan"] != "fsdp":
            left_out[f"{source}: plan {row['plan']}, or no accumulation is given"] += 1
            continue
        layers, width, heads, mlp, words, length, devices = (
            int(row[name]) for name in ("layers", "width", "heads", "mlp", "words", "length", "devices")
        )
        microbatch, accumulate = int(row["rows_per_microbatch_per_device"]), int(row["accumulate"])
        rows = devices * microbatch * accumulate
        more = [f"sublinear(segments={layers})"] if row["recompute"] == "full" else []
        model: tuple[str, Any, Any] = (
            (
                "Llama",
                llama.build,
                LlamaConfig(words, length, layers, width, heads, int(row["kv_heads"]), mlp),
            )
            if row["model"].startswith("llama")
            else ("GPT", gpt.build, GPTConfig(words, length, layers, width, heads, 0.0, mlp // width))
        )
        yield Step(
            *(source, f"{row['model']}, {devices}x{row['device']}, {length}", *model, rows),
            f"{-(-devices // 8)}x8x{row['device'].replace('H100-80G', 'H100')}",
            megatron_text(1, 1, devices, microbatch, *more, "zero(stage=3)"),
            rows * length / devices / float(row["tokens_per_s_per_device"]),
        )


def posted_steps(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """Steps with the command that plans them."""
    for row in _table(folder / "measured_steps.csv"):
        given = shlex.split(row["settings"])
        name = given[2]
        options = dict(pairwise(given))
        source = row["source"].split(" ")[0]
        yield Step(
            *(source, row["row"], "Llama" if name.endswith(".json") else "BERT" if "bert" in name else "GPT"),
            *(_of_file, folder / "models" / name, int(options.get("--rows", 0))),
            *(options["--cluster"], options["--strategies"]),
            float(row["measured_step_s"]) if row["measured_step_s"] else None,
            # TinyLlama's is the size of the card.
            float(row["measured_gib"]) if row["measured_gib"] and source != "TinyLlama" else None,
            dtype=options["--dtype"],
            model="Llama-1.1B on 16 GPUs" if row["row"].startswith("16gpu") else "",
        )


def _of_file(name: str, path: Path, rows: int) -> Model:
    return llama.build(name, read_config(path), rows) if path.suffix == ".json" else load_model_file(path)


SOURCES: tuple[tuple[str, Callable[[Path, int, LeftOut], Iterator[Step]]], ...] = (
    ("data/perf", b200),
    ("data/perf", korthikanti),
    ("data/perf", megatron_a100),
    ("data/perf", vtrain),
    ("data/perf", nvidia_bert),
    ("data/perf", lambda_resnet),
    ("cases/numbers", posted_gpt2),
    ("cases/numbers", posted_throughput),
    ("cases/numbers", posted_steps),
)
"""The folder that each source has below that of the shared data, and what reads it."""


def steps(folder: Path, every: int, left_out: LeftOut) -> Iterator[Step]:
    """All steps that can be described.

    Parameters
    ----------
    every : of the largest source, vTrain, only each so many rows are taken.
    folder : has ``data/perf`` and ``cases/numbers``; a source that is not there is counted as left out.
    left_out : gets the number of rows by source and reason.
    """
    for place, read in SOURCES:
        try:
            yield from read(folder / place, every, left_out)
        except FileNotFoundError as error:
            left_out[f"{read.__name__}: {error.filename} is not there"] += 1
