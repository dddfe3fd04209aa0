"""Keys of blocks: two sequences have the same key where they are the same up to the end of a block."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from trainyard.serve.request_state import RequestState

__all__ = ["BlockKeys"]


class BlockKeys:
    """Keys of the blocks of a cache.

    Where tokens are known, a key is a number that stands for the key of the block before and the tokens in the block: two
    blocks have the same number only where all of that is the same. Where a trace tells of prompts by blocks of its own,
    keys are made of these. Of other requests nothing is known, and their blocks have none.

    Parameters
    ----------
    block_tokens : tokens in a block of the cache.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._numbers: dict[tuple[Hashable, tuple[int, ...]], int] = {}

    def of(self, state: RequestState, num_blocks: int) -> Sequence[Hashable]:
        """Keys of the first blocks of a request, of which all tokens are there; of fewer, where no more are known."""
        keys = state.keys
        if len(keys) < num_blocks:
            if state.tokens:
                for place in range(len(keys), num_blocks):
                    keys.append(self._number_of(state.tokens, place, keys[-1] if keys else None))
            elif state.request.prefix is not None:
                ids, size = state.request.prefix
                most = min(num_blocks, state.request.prompt_tokens // self._size)
                for end in range((len(keys) + 1) * self._size - 1, most * self._size, self._size):
                    keys.append((ids[end // size], end % size))
        return keys[:num_blocks]

    def _number_of(self, tokens: Sequence[int], place: int, before: Hashable) -> int:
        block = tuple(tokens[place * self._size : (place + 1) * self._size])
        return self._numbers.setdefault((before, block), len(self._numbers))
