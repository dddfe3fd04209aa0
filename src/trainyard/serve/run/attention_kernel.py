"""The compiled loops of paged attention; imported only when the first batch is computed.

Both halves of attention are one small product: the scores of a block are the queries of a group of heads times the
block's keys, and the output grows by the weights of a block's tokens times its values. Keys are stored with the tokens
of a block side by side, and values with the numbers of a head side by side, so that the columns of either product lie
in a row in memory. `_add_product` is that product in vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from trainyard.compiling import lean
from trainyard.serve.run.vector_math import exp, fast, highest, tanh

__all__ = ["TILE", "tile_kernel", "token_kernel", "write_tokens"]

_LANES = 16
"""Numbers of a vector in the instructions that are written; where the processor's are shorter, LLVM takes several."""
_SUMS = 8
"""Vectors of sums that stay in registers."""
_MOST_ROWS = 4
TILE = 4
"""Queries of a sequence that are computed together, where it has as many."""
_FLOAT = ir.FloatType()
_INDEX = ir.IntType(64)
f32 = np.float32


def _product(
    typing: Any,
    out: Any,
    out_first: Any,
    out_stride: Any,
    left: Any,
    left_first: Any,
    left_stride: Any,
    right: Any,
    right_first: Any,
    length: Any,
    num_rows: Any,
    num_columns: Any,
) -> Any:
    """``out[row, column] += sum of left[row, i] * right[i, column] for i < length``, of flat arrays.

    Parameters
    ----------
    out, left : flat float32 arrays.
    right : flat array of float32, or of int16 which are bfloat16; rows follow each other.
    out_first, left_first, right_first : index of the first element.
    out_stride, left_stride : elements from row to row.
    length : terms of each sum, int64.
    num_rows, num_columns : constants.
    """
    index = types.int64
    sizes = (num_rows, num_columns)
    signature = types.void(out, index, index, left, index, index, right, index, index, *sizes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def start(array: Any, value: Any, first: Any) -> Any:
            return builder.gep(context.make_array(array)(context, builder, value).data, [first])

        emit = _Product(
            builder,
            start(out, args[0], args[1]),
            args[2],
            start(left, args[3], args[4]),
            args[5],
            start(right, args[6], args[7]),
            num_columns.literal_value,
            args[8],
        )
        for first_row, rows in _cut(num_rows.literal_value, _MOST_ROWS):
            widest = _LANES * (_SUMS // rows)
            for first_column, columns in _cut(num_columns.literal_value, widest):
                emit.tile(first_row, rows, first_column, columns)
        return context.get_dummy_value()

    return signature, generate


_add_product: Any = intrinsic(prefer_literal=True)(_product)


def _cut(total: int, most: int) -> Iterator[tuple[int, int]]:
    """First index and size of each part."""
    return ((first, min(most, total - first)) for first in range(0, total, most))


class _Product:
    """Writes the instructions of a product of two matrices, tile by tile."""

    def __init__(
        self,
        builder: Any,
        out: Any,
        out_stride: Any,
        left: Any,
        left_stride: Any,
        right: Any,
        right_stride: int,
        length: Any,
    ) -> None:
        self.builder, self.length = builder, length
        self.out, self.out_stride = out, out_stride
        self.left, self.left_stride = left, left_stride
        self.right, self.right_stride = right, _INDEX(right_stride)

    def tile(self, first_row: int, num_rows: int, first_column: int, num_columns: int) -> None:
        """Add to some rows and columns of the output; all its sums stay in registers meanwhile."""
        builder = self.builder
        parts = list(_cut(num_columns, _LANES))
        # Sums of several terms at once: one addition need not wait for the one before.
        copies = max(1, min(4, _SUMS // (num_rows * len(parts))))
        sums = {
            (copy, row, part): cgutils.alloca_once_value(builder, ir.VectorType(_FLOAT, width)([0.0] * width))
            for copy in range(copies)
            for row in range(num_rows)
            for part, (_, width) in enumerate(parts)
        }
        lefts = [
            builder.gep(self.left, [builder.mul(_INDEX(first_row + row), self.left_stride)])
            for row in range(num_rows)
        ]

        def add_term(term: Any, copy: int) -> None:
            scales = [builder.load(builder.gep(each, [term])) for each in lefts]
            line = builder.add(builder.mul(term, self.right_stride), _INDEX(first_column))
            for part, (column, width) in enumerate(parts):
                values = self._values(builder.add(line, _INDEX(column)), width)
                for row, scale in enumerate(scales):
                    place = sums[copy, row, part]
                    product = builder.fmul(_spread(builder, scale, width), values, flags=("contract",))
                    builder.store(builder.fadd(builder.load(place), product, flags=("contract",)), place)

        whole = builder.udiv(self.length, _INDEX(copies))
        with cgutils.for_range(builder, whole) as loop:
            for copy in range(copies):
                add_term(builder.add(builder.mul(loop.index, _INDEX(copies)), _INDEX(copy)), copy)
        if copies > 1:
            with cgutils.for_range(builder, self.length, start=builder.mul(whole, _INDEX(copies))) as loop:
                add_term(loop.index, 0)
        for row in range(num_rows):
            line = builder.mul(_INDEX(first_row + row), self.out_stride)
            for part, (column, _) in enumerate(parts):
                total = builder.load(sums[0, row, part])
                for copy in range(1, copies):
                    total = builder.fadd(total, builder.load(sums[copy, row, part]))
                place = builder.gep(self.out, [builder.add(line, _INDEX(first_column + column))])
                place = builder.bitcast(place, total.type.as_pointer())
                builder.store(builder.fadd(builder.load(place, align=4), total), place, align=4)

    def _values(self, first: Any, width: int) -> Any:
        """Load neighbours of the right matrix, bfloat16 ones as what they are in float32."""
        place = self.builder.gep(self.right, [first])
        element = place.type.pointee
        place = self.builder.bitcast(place, ir.VectorType(element, width).as_pointer())
        values = self.builder.load(place, align=2 if isinstance(element, ir.IntType) else 4)
        if not isinstance(element, ir.IntType):
            return values
        wide = ir.VectorType(ir.IntType(32), width)
        bits = self.builder.shl(self.builder.zext(values, wide), wide([16] * width))
        return self.builder.bitcast(bits, ir.VectorType(_FLOAT, width))


def _spread(builder: Any, number: Any, width: int) -> Any:
    """A vector that has the number everywhere."""
    vector = ir.VectorType(_FLOAT, width)
    alone = builder.insert_element(vector(ir.Undefined), number, ir.IntType(32)(0))
    zeros = ir.VectorType(ir.IntType(32), width)([0] * width)
    return builder.shuffle_vector(alone, vector(ir.Undefined), zeros)


@fast
def _softmax(scores: Any, scale: Any, softcap: Any, sink: Any) -> None:
    """Turn products of a query and keys into the weights of their tokens, in place.

    Parameters
    ----------
    scale : of the products, above 0.
    softcap : bound of the scores, which are ``softcap * tanh(score / softcap)``; 0 for none.
    sink : score of one more token, which has no value; minus infinity for none.
    """
    if softcap > f32(0.0):
        for i in range(len(scores)):
            scores[i] = softcap * tanh(scores[i] * (scale / softcap))
        scale = f32(1.0)
    top = max(highest(scores), sink / scale)
    total = exp(sink - top * scale)
    for i in range(len(scores)):
        weight = exp((scores[i] - top) * scale)
        scores[i] = weight
        total += weight
    share = f32(1.0) / total
    for i in range(len(scores)):
        scores[i] *= share


@cache
def token_kernel(group: int, head_dim: int, value_dim: int, block_tokens: int) -> Callable[..., None]:
    """Compile, for these sizes, the attention of what `tile_kernel` leaves: fewer than `TILE` queries of a sequence.

    All heads of a query are computed block by block, so that the cache is read as it lies in memory.

    Parameters
    ----------
    group : query heads that share keys and values.
    head_dim, value_dim : elements of a key and of a value.
    """
    size, value_size = head_dim * block_tokens, value_dim * block_tokens

    def attend_tokens(
        query: Any, keys: Any, values: Any, starts: Any, positions: Any, tables: Any,
        num_heads: int, scale: Any, softcap: Any, sinks: Any, windows: Any, scores: Any, out: Any,
    ) -> None:  # fmt: skip
        stride, num_kv_heads = len(scores) // num_heads, num_heads // group
        line, out_line = num_heads * head_dim, num_heads * value_dim
        for sequence in range(len(positions)):
            last = starts[sequence + 1]
            for token in range(last - (last - starts[sequence]) % TILE, last):
                end = positions[sequence] + token - starts[sequence] + 1
                start = max(0, end - windows[token])
                first_block, last_block = start // block_tokens, (end - 1) // block_tokens
                base, row, out_row = first_block * block_tokens, token * line, token * out_line
                out[out_row : out_row + out_line] = f32(0.0)
                for head in range(num_heads):
                    column = head * stride
                    scores[column : column + (last_block + 1) * block_tokens - base] = f32(0.0)
                for block in range(first_block, last_block + 1):
                    place = np.int64(tables[sequence, block]) * num_kv_heads * size
                    for head in range(0, num_heads, group):
                        column = block * block_tokens - base + head * stride
                        _add_product(
                            scores, column, stride, query, row + head * head_dim, head_dim,
                            keys, place + head // group * size, head_dim, group, block_tokens,
                        )  # fmt: skip
                for head in range(num_heads):
                    seen = scores[head * stride + start - base : head * stride + end - base]
                    _softmax(seen, scale, softcap, sinks[head])
                for block in range(first_block, last_block + 1):
                    first, last_token = max(start, block * block_tokens), min(end, (block + 1) * block_tokens)
                    place = np.int64(tables[sequence, block]) * num_kv_heads * value_size
                    place += (first - block * block_tokens) * value_dim
                    for head in range(0, num_heads, group):
                        _add_product(
                            out, out_row + head * value_dim, value_dim,
                            scores, first - base + head * stride, stride,
                            values, place + head // group * value_size, last_token - first, group, value_dim,
                        )  # fmt: skip

    return fast(attend_tokens)


@cache
def tile_kernel(group: int, head_dim: int, value_dim: int, block_tokens: int) -> Callable[..., None]:
    """Compile, for these sizes, the attention of tiles: `TILE` queries that follow each other in a sequence.

    A tile reads each key and value of a head once for all its queries.

    Parameters
    ----------
    group : query heads that share keys and values.
    head_dim, value_dim : elements of a key and of a value.
    """
    size, value_size = head_dim * block_tokens, value_dim * block_tokens

    def attend_tiles(
        query: Any, keys: Any, values: Any, starts: Any, positions: Any, tables: Any,
        num_heads: int, scale: Any, softcap: Any, sinks: Any, windows: Any, scores: Any, out: Any,
    ) -> None:  # fmt: skip
        stride, num_kv_heads = len(scores) // TILE, num_heads // group
        line, out_line = num_heads * head_dim, num_heads * value_dim
        for sequence in range(len(positions)):
            first, length = starts[sequence], starts[sequence + 1] - starts[sequence]
            for item in range(num_heads * (length // TILE)):
                head, tile = divmod(item, length // TILE)
                # Of the first query of the tile; all together see the tokens from `start` to `last - 1`.
                end = positions[sequence] + tile * TILE + 1
                start, last = max(0, end - windows[first + tile * TILE]), end + TILE - 1
                first_block, last_block = start // block_tokens, (last - 1) // block_tokens
                base, token = first_block * block_tokens, first + tile * TILE
                row, out_row = token * line + head * head_dim, token * out_line + head * value_dim
                for i in range(TILE):
                    out[out_row + i * out_line : out_row + i * out_line + value_dim] = f32(0.0)
                    scores[i * stride : i * stride + (last_block + 1) * block_tokens - base] = f32(0.0)
                for block in range(first_block, last_block + 1):
                    place = (np.int64(tables[sequence, block]) * num_kv_heads + head // group) * size
                    _add_product(
                        scores, block * block_tokens - base, stride, query, row, line,
                        keys, place, head_dim, TILE, block_tokens,
                    )  # fmt: skip
                for i in range(TILE):
                    seen = scores[i * stride + start - base : i * stride + last - base]
                    own, unseen = max(0, end + i - windows[first + tile * TILE + i]) - start, end + i - start
                    _softmax(seen[own:unseen], scale, softcap, sinks[head])
                    seen[:own] = f32(0.0)
                    seen[unseen:] = f32(0.0)
                for block in range(first_block, last_block + 1):
                    token = max(start, block * block_tokens)
                    place = (np.int64(tables[sequence, block]) * num_kv_heads + head // group) * value_size
                    place += (token - block * block_tokens) * value_dim
                    _add_product(
                        out, out_row, out_line, scores, token - base, stride, values, place,
                        min(last, (block + 1) * block_tokens) - token, TILE, value_dim,
                    )  # fmt: skip

    return fast(attend_tiles)


@lean
def write_tokens(keys: Any, values: Any, slots: Any, key_cache: Any, value_cache: Any) -> None:
    """Copy keys and values of tokens to their places in the cache, of any type of numbers."""
    num_heads, head_dim, block_tokens = key_cache.shape[1:]
    value_dim = value_cache.shape[3]
    for token in range(len(slots)):
        block, offset = divmod(slots[token], block_tokens)
        for head in range(num_heads):
            for i in range(head_dim):
                key_cache[block, head, i, offset] = keys[token, head, i]
            for i in range(value_dim):
                value_cache[block, head, offset, i] = values[token, head, i]
