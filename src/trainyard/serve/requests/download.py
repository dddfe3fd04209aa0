"""Public traces of requests, which can be downloaded from their authors.

Only files whose SHA-256 is known are in the table. BurstGPT and the later traces of Azure and Mooncake have to be fetched
by hand.
"""

from __future__ import annotations

from trainyard.reading.download import GITHUB, PublicFile

__all__ = ["TRACES"]

_AZURE = f"{GITHUB}/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08/data"
_VIDUR = f"{GITHUB}/microsoft/vidur"
_MOONCAKE = f"{GITHUB}/kvcache-ai/Mooncake"

TRACES: dict[str, PublicFile] = {
    "azure-conv": PublicFile(
        "19,366 requests of a chat service of Azure, an hour of 2023 (Patel et al., ISCA 2024)",
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        719188,
        "azure",
    ),
    "azure-code": PublicFile(
        "8,819 requests of a service of Azure that completes code, an hour of 2023",
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        320117,
        "azure",
    ),
    "vidur-conv": PublicFile(
        "Azure's chat requests as Vidur has them (Agrawal et al., MLSys 2024)",
        f"{_VIDUR}/8e54dd5c137a9b5aa0b6ff512ace6cc7caf8a377/data/processed_traces/splitwise_conv.csv",
        "439e4138b7e384f316de614c071f7162be05b8af0cef866f82faacd1b0472249",
        382729,
        "vidur",
    ),
    "vidur-code": PublicFile(
        "Azure's requests for code as Vidur has them",
        f"{_VIDUR}/4f9167b6e76099943b2a8195cb1fcac7d693ead9/data/processed_traces/splitwise_code.csv",
        "f266b907d109d471c61283ab69771c17ad79a18b33ff6e96aa546346f52767a6",
        166195,
        "vidur",
    ),
    "mooncake-conversation": PublicFile(
        "12,031 requests of Kimi's chats, with the blocks that prompts share (Qin et al., FAST 2025)",
        f"{_MOONCAKE}/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        3029533,
        "mooncake",
    ),
    "mooncake-synthetic": PublicFile(
        "3,993 requests that Mooncake's authors made of public data, with shared blocks",
        f"{_MOONCAKE}/3cca71daccf2a7afb8fe3f0295358f70e3a69fdb/FAST25-release/traces/synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        1136313,
        "mooncake",
    ),
}
"""By name."""
