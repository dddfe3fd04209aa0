"""Keys of blocks: equal for sequences that are equal up to the end of the block, and have the same adapter and salt."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b

from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request

__all__ = ["BlockKeys"]


class BlockKeys:
    """Keys of the blocks of a cache.

    If token ids are known, a key is a digest (BLAKE2, 128 bits) of the key of the block before and of the block's tokens.
    If a trace describes prompts by blocks of its own, keys are made from these. Unknown content gets a unique key: only
    the request itself finds it again, after a preemption. What is cached of equal tokens depends on the adapter
    of a request, and so does the key. With a salt a client keeps others from finding out what it asked.

    Parameters
    ----------
    block_tokens : tokens per block of the cache.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens

    def of(self, state: RequestState, num_blocks: int) -> Sequence[Hashable]:
        """Keys of the first ``num_blocks`` blocks of a request, which are full."""
        keys, prefix = state.keys, state.request.prefix
        if len(keys) >= num_blocks:
            return keys[:num_blocks]
        if prefix is None and not state.tokens:
            keys += [(None, state.number, place) for place in range(len(keys), num_blocks)]
            return keys[:num_blocks]
        owner = _owner(state.request)
        of_prompt: Sequence[Hashable] = prefix.keys if prefix is not None else ()
        if owner:
            of_prompt = [(owner, key) for key in of_prompt]
        num_known = state.request.prompt_tokens // self._size if prefix is not None else 0
        for place in range(len(keys), num_blocks):
            if (place + 1) * self._size <= len(state.tokens):
                keys.append(self._digest(state.tokens, place, keys[-1] if keys else owner))
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


def _owner(request: Request) -> bytes:
    """What keys depend on besides tokens: a digest of the adapter and the salt; empty if there is neither."""
    if not request.adapter and not request.cache_salt:
        return b""
    parts = (request.adapter.encode(), request.cache_salt.encode())
    return blake2b(b"".join(len(part).to_bytes(8) + part for part in parts), digest_size=16).digest()
