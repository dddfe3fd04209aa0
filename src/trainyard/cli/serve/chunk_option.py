"""Option that says how many tokens a step has, whichever policy cuts prompts into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from trainyard.cli.bounds import TOKENS

__all__ = ["ChunkOption"]


@dataclass(frozen=True, kw_only=True)
class ChunkOption:
    """Option of commands that let batch policies decide."""

    chunk: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Tokens of a step, into which the policy cuts prompts: chunk_tokens of sarathi and sglang, max_batch_tokens
    of vllm."""

    def chunked(self, policies: str) -> str:
        """The policies with what the option says.

        Raises
        ------
        ServeError
            If one does not cut prompts into chunks, or says itself how large they are.
        """
        from trainyard.serve.catalog import with_chunks

        return policies if self.chunk is None else with_chunks(policies, self.chunk)
