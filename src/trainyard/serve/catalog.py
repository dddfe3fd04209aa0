"""The catalog of level 3: every published system, one entry each, by name.

This is the only place where a policy's name means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainyard.naming import Names
from trainyard.serve.auto import auto
from trainyard.serve.errors import ServeError
from trainyard.serve.own_policy import OwnPolicy, decision_of
from trainyard.serve.policies.admitting import AdmittingPolicy
from trainyard.serve.policies.alpaserve.local import mixed_search
from trainyard.serve.policies.longest_prefix import LongestPrefix
from trainyard.serve.policies.nexus.packing import pack
from trainyard.serve.policies.orca import Orca
from trainyard.serve.policies.priority import Priority
from trainyard.serve.policies.sarathi import sarathi
from trainyard.serve.policies.sglang import SGLang
from trainyard.serve.policies.shortest_prompt import ShortestPrompt
from trainyard.serve.policies.trtllm import TensorRTLLM
from trainyard.serve.policies.turbotransformers.batching import TurboTransformers
from trainyard.serve.policies.vllm import PrefillFirst, vllm
from trainyard.serve.policies.vtc import VTC
from trainyard.serve.policy import BatchPolicy, PortablePolicy

__all__ = [
    "CATALOG",
    "Entry",
    "is_own",
    "parse_policies",
    "reads_priority",
    "swapping_policies",
    "with_chunks",
]

Decides = Literal["batches", "admission", "encoder batches", "placement", "deployment"]


@dataclass(frozen=True)
class Entry:
    """One published system.

    Attributes
    ----------
    name : that users give.
    decides : "batches" of an instance; "admission", the request that is admitted next, for any of those; "encoder
        batches", of requests that are one forward pass, from the given cost of a batch; "placement", which models are on
        which devices; or "deployment": the split of a model, its replicas, and their policy.
    factory : makes it from options by keyword; its defaults are the paper's.
    title : one line.
    paper : authors, title, venue and year.
    fidelity : "exact" if the decision is the paper's; "simplified" if ``left_out`` says what is missing; or our "own".
    claim_test : file of the test of the paper's claim, from the repository's root.
    needs : what must be known besides the lengths of prompts.
    variants : settings that the paper compares, by name; keyword arguments of ``factory``.
    searched : values of options that a search tries, the smallest first, by the name of the option.
    chunk_option : name of the option that says how many tokens a step has, into which prompts are cut; "" where prompts
        are computed whole.
    """

    name: str
    decides: Decides
    factory: Callable[..., Any]
    title: str
    paper: str
    fidelity: Literal["exact", "simplified", "own"]
    claim_test: str
    left_out: str = ""
    needs: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    searched: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    chunk_option: str = ""

    @property
    def module(self) -> str:
        """Dotted name of the file that holds the factory, or of its folder where the system has one."""
        name = self.factory.__module__
        folder = name.rpartition(".")[0]
        return folder if ".policies." in folder else name

    @property
    def runs(self) -> str:
        """Say where the system decides: ``serve run`` takes batch and admission policies; placements are simulated."""
        return (
            "in simulation"
            if self.decides in ("placement", "deployment")
            else "in simulation and for real requests"
        )


_TESTS = "tests/serve/policies"
_STEP_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
_REQUESTS = (8, 16, 32, 64, 128, 256, 512)
_VLLM = 'Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023'

CATALOG: tuple[Entry, ...] = (
    Entry(
        "orca",
        "batches",
        Orca,
        "Iteration-level scheduling with reservations",
        'Yu et al., "ORCA: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022',
        "exact",
        f"{_TESTS}/test_orca.py",
        needs=("how long answers may be",),
        searched={"max_requests": _REQUESTS},
    ),
    Entry(
        "vllm",
        "batches",
        vllm,
        "One budget of tokens for decodes and prompts, paged",
        _VLLM,
        "simplified",
        f"{_TESTS}/test_vllm.py",
        left_out="beam search, and that each sample computes the last block of its prompt by itself where it is not full",
        searched={"max_batch_tokens": _STEP_TOKENS, "max_requests": _REQUESTS},
        chunk_option="max_batch_tokens",
    ),
    Entry(
        "vllm_v0",
        "batches",
        PrefillFirst,
        "Prompts first, decodes apart, paged",
        _VLLM,
        "simplified",
        f"{_TESTS}/test_vllm.py",
        left_out="beam search",
        variants={"swapping": {"preempt": "swap"}, "recomputing": {"preempt": "recompute"}},
        searched={"max_batch_tokens": _STEP_TOKENS, "max_requests": _REQUESTS},
    ),
    Entry(
        "sarathi",
        "batches",
        sarathi,
        "Prompts in chunks beside all decodes",
        'Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024',
        "simplified",
        f"{_TESTS}/test_sarathi.py",
        left_out="how the budget is found from an objective by measuring steps",
        variants={"2048 tokens": {"chunk_tokens": 2048}},
        searched={"chunk_tokens": _STEP_TOKENS, "max_requests": _REQUESTS},
        chunk_option="chunk_tokens",
    ),
    Entry(
        "sglang",
        "batches",
        SGLang,
        "Prompts first, in chunks, with an estimate of what running requests need",
        "the program SGLang, version 0.5, 2025, with the paper of Zheng et al., NeurIPS 2024",
        "simplified",
        f"{_TESTS}/test_sglang.py",
        left_out="priorities, dynamic chunks, and that ends of requests are seen a step later",
        variants={"mixed chunks": {"mixed_chunk": True}, "whole prompts": {"chunk_tokens": 0}},
        searched={"chunk_tokens": _STEP_TOKENS, "max_requests": _REQUESTS},
        chunk_option="chunk_tokens",
    ),
    Entry(
        "trtllm",
        "batches",
        TensorRTLLM,
        "Decodes and whole prompts in one step, with blocks guaranteed to the end",
        "the program TensorRT-LLM, versions 1.0 to 1.2, NVIDIA, 2025",
        "simplified",
        f"{_TESTS}/test_trtllm.py",
        left_out="waiting for more prompts, equal progress of chunks, static batches, and beams",
        needs=("how long answers may be",),
        variants={
            "max utilization": {"capacity": "max_utilization"},
            "chunked prompts": {"chunked_prefill": True},
        },
        searched={"max_batch_tokens": _STEP_TOKENS, "max_requests": _REQUESTS},
    ),
    Entry(
        "turbotransformers",
        "encoder batches",
        TurboTransformers,
        "Encoders in batches of like lengths, by dynamic programming",
        'Fang et al., "TurboTransformers: An Efficient GPU Serving System For Transformer Models", PPoPP 2021',
        "simplified",
        f"{_TESTS}/test_turbotransformers.py",
        left_out="the lazy strategy, the cache of responses, and kernels",
        needs=("how long a batch takes",),
    ),
    Entry(
        "longest_prefix",
        "admission",
        LongestPrefix,
        "Longest prefix in the cache first",
        'Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024',
        "simplified",
        f"{_TESTS}/test_longest_prefix.py",
        left_out="prefixes that end within a block, and the language",
        needs=("tokens of prompts, or their blocks",),
    ),
    Entry(
        "vtc",
        "admission",
        VTC,
        "The same service for all clients",
        'Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024',
        "exact",
        f"{_TESTS}/test_vtc.py",
        needs=("clients",),
        variants={"predict": {"predict": "moving average"}, "oracle": {"predict": "oracle"}},
    ),
    Entry(
        "priority",
        "admission",
        Priority,
        "The most urgent request first",
        'Cobham, "Priority Assignment in Waiting Line Problems", J. Operations Research Society of America 2(1), 1954',
        "exact",
        f"{_TESTS}/test_priority.py",
        needs=("priorities of requests",),
    ),
    Entry(
        "shortest_prompt",
        "admission",
        ShortestPrompt,
        "Shortest prompt first, with a limit to waiting",
        "our own, 2026",
        "own",
        f"{_TESTS}/test_shortest_prompt.py",
        searched={"max_wait_s": (1.0, 5.0, 20.0, 60.0)},
    ),
    Entry(
        "alpaserve",
        "placement",
        mixed_search,
        "Models split over groups of devices, placed by simulation",
        'Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning Serving", OSDI 2023',
        "simplified",
        f"{_TESTS}/test_alpaserve.py",
        left_out="buckets of models by size, and batches",
        needs=("profiles of models", "arrivals", "objectives"),
    ),
    Entry(
        "nexus",
        "placement",
        pack,
        "Sessions packed on devices by their batches and duty cycles",
        'Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019',
        "simplified",
        f"{_TESTS}/test_nexus.py",
        left_out="finding which models share a prefix, and moves of sessions only to give up a device",
        needs=("profiles of models", "rates", "objectives"),
    ),
    Entry(
        "auto_serve",
        "deployment",
        auto,
        "The best policy, its options, the split and the replicas, by simulation",
        "our own, 2026",
        "own",
        "tests/serve/test_serve_auto.py",
        needs=("a trace of requests",),
    ),
)
"""All systems of level 3."""

_BY_NAME = {entry.name: entry for entry in CATALOG if entry.decides in ("batches", "admission")}
_DEFAULT = _BY_NAME["vllm"]  # of batch policies, where only an admission is named
_NAMES: Names[Any] = Names(
    tuple(_BY_NAME.values()),
    "policy",
    "policies",
    "sarathi(chunk_tokens=256) + vtc, vllm",
    ServeError,
    (int, float, str),
    "a number, text in quotes, True, False or None",
    OwnPolicy,
)


def parse_policies(text: str) -> tuple[tuple[str, BatchPolicy], ...]:
    """Read batch policies from text: names joined by commas, each with options in parentheses if it has any.

    Parameters
    ----------
    text : ``"vllm, sarathi(chunk_tokens=256) + vtc"``. After ``+`` stands who is admitted next, by default the first to
        come; alone, it goes with ``vllm``. One of the user's own is ``FILE.py:NAME``; that file is run.

    Returns
    -------
    Pairs of the name (with its options) and the policy; one that is named twice is there once.

    Raises
    ------
    ServeError
        If a name or an option is unknown, the text has another form, or two things decide the same.

    Examples
    --------
    >>> [name for name, _ in parse_policies("vllm, sarathi(chunk_tokens=256) + vtc")]
    ['vllm', 'sarathi(chunk_tokens=256) + vtc']
    """
    found = ((" + ".join(name for name, _ in each), _composed(each)) for each in _NAMES.parse_sums(text))
    return tuple(dict(found).items())


def with_chunks(text: str, step_tokens: int) -> str:
    """The same policies, each with so many tokens in a step, by the option of its own that says it.

    Parameters
    ----------
    text : as `parse_policies` reads it.

    Raises
    ------
    ServeError
        If a policy does not cut prompts into chunks, or the text says how large they are.

    Examples
    --------
    >>> with_chunks("sarathi(max_requests=8), vtc", 256)
    'sarathi(max_requests=8, chunk_tokens=256), vllm(max_batch_tokens=256) + vtc'
    """
    return ", ".join(" + ".join(_with_chunks(each, step_tokens)) for each in _NAMES.split_sums(text))


def _with_chunks(names: tuple[str, ...], step_tokens: int) -> tuple[str, ...]:
    """The names of one policy, the batch policy first."""
    entries = {name: _NAMES.find(name.partition("(")[0]) for name in names}
    known = {name: entry for name, entry in entries.items() if isinstance(entry, Entry)}
    batches = [name for name, entry in known.items() if entry.decides == "batches"]
    own = [name for name in names if name not in known]
    chosen = (*batches, *own, _DEFAULT.name)[0]
    entry = known.get(chosen, None if chosen in own else _DEFAULT)
    if entry is None or not entry.chunk_option:
        able = ", ".join(each.name for each in CATALOG if each.chunk_option)
        raise ServeError(
            f"{chosen} has no option that says how many tokens a step has; those that cut prompts into chunks: {able}"
        )
    name, _, options = chosen.removesuffix(")").partition("(")
    if f"{entry.chunk_option}=" in options:
        raise ServeError(f"{chosen} says already how many tokens a step has; leave one of both out")
    options = ", ".join(filter(None, (options, f"{entry.chunk_option}={step_tokens}")))
    return (f"{name}({options})", *(each for each in names if each != chosen))


def is_own(name: str) -> bool:
    """Whether a name of `parse_policies` is, or has in it, something of the user's own."""
    return ".py:" in name


def swapping_policies(text: str, *, samples: bool) -> tuple[str, ...]:
    """Names of those policies of a text that may swap requests out to the host.

    Parameters
    ----------
    samples : whether there are requests with several samples, which some policies swap out, and others not.
    """
    ways = ("swap", "swap samples") if samples else ("swap",)
    return tuple(
        name
        for name, policy in parse_policies(text)
        if isinstance(policy, PortablePolicy) and policy.engine_needs(1).preempts_by in ways
    )


def reads_priority(text: str) -> bool:
    """Whether a policy of a text may depend on the priorities of requests; one of the user's own may."""
    return any(
        is_own(name) or (isinstance(policy, AdmittingPolicy) and policy.admission.reads_priority)
        for name, policy in parse_policies(text)
    )


def _composed(pairs: tuple[tuple[str, Any], ...]) -> BatchPolicy:
    found: dict[str, Any] = {}
    for name, made in pairs:
        entry = _BY_NAME.get(name.partition("(")[0])
        decides = entry.decides if entry is not None else decision_of(name, made)
        if decides in found:
            given = " + ".join(each for each, _ in pairs)
            raise ServeError(f"{given}: two of them decide about {decides}; name one")
        found[decides] = made
    policy: BatchPolicy = found.get("batches") or _DEFAULT.factory()
    if "admission" not in found:
        return policy
    if not isinstance(policy, AdmittingPolicy):
        raise ServeError(f"{pairs[0][0]} admits requests itself; leave {pairs[-1][0]} out")
    return replace(policy, admission=found["admission"])
