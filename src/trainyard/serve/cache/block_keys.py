"""Keys of blocks: two have the same one if their sequences are equal up to the end of the block, and use one adapter."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b

from trainyard.serve.request_state import RequestState

__all__ = ["BlockKeys"]


class BlockKeys:
    """Keys of the blocks of a cache.

    If token ids are known, a key is a digest (BLAKE2, 128 bits) of the key of the block before and of the block's tokens.
    If a trace describes prompts by blocks of its own, keys are made from these. Unknown content gets a unique key: only
    the request itself finds it again, after a preemption. What is cached of equal tokens depends on the adapter
    of a request, and so does the key.

    Parameters
    ----------
    block_tokens : tokens per block of the cache.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens

    def of(self, state: RequestState, num_blocks: int) -> Sequence[Hashable]:
        """Keys of the first ``num_blocks`` blocks of a request, which are full."""
        keys, prefix, adapter = state.keys, state.request.prefix, state.request.adapter
        if len(keys) >= num_blocks:
            return keys[:num_blocks]
        of_prompt: Sequence[Hashable] = prefix.keys if prefix is not None else ()
        if adapter:
            of_prompt = [(adapter, key) for key in of_prompt]
        num_known = state.request.prompt_tokens // self._size if prefix is not None else 0
        for place in range(len(keys), num_blocks):
            if (place + 1) * self._size <= len(state.tokens):
                keys.append(self._digest(state.tokens, place, keys[-1] if keys else _before_all(adapter)))
            elif prefix is not None and place < num_known:
                end = (place + 1) * self._size - 1
                keys.append((of_prompt[end // prefix.tokens_per_block], end % prefix.tokens_per_block))
            else:
                keys.append((None, state.number, place))
        return keys[:num_blocks]

    def _digest(self, tokens: Sequence[int], place: int, before: Hashable) -> bytes:
        block = array("q", tokens[place * self._size : (place + 1) * self._size])
        assert isinstance(before, bytes)  # tokens are known from the first one on
        return blake2b(before + block.tobytes(), digest_size=16).digest()


def _before_all(adapter: str) -> bytes:
    """What the key of the first block follows from, beside its tokens."""
    return blake2b(adapter.encode(), digest_size=16, person=b"adapter").digest() if adapter else b""
