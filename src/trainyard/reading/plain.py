"""Text files as others keep them: compressed, in UTF-16, with lines that end in CR alone; read as plain UTF-8."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO

from trainyard.reading.errors import ReadingError
from trainyard.reading.limits import MOST_UNPACKED_BYTES

_PIECE = 1 << 16
_UNPACKING: tuple[tuple[bytes, str, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", "gzip", gzip.open),
    (b"BZh", "bzip2", bz2.open),
    (b"\xfd7zXZ\0", "xz", lzma.open),
)
_REFUSED = (
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard; unpack it with `zstd -d`"),
    (b"PK\x03\x04", "a ZIP archive, or a workbook; unpack it, or export it as CSV"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it"),
    (b"PAR1", "a Parquet file; export it as CSV"),
    (b"SQLite format 3\0", "a SQLite database; export its table as CSV"),
)
# That of UTF-32 begins as that of UTF-16, and is looked for first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_plain(path: Path) -> BinaryIO:
    """A text file as bytes of UTF-8 without a mark at the beginning, with lines that end in LF or CR LF.

    A file that is so already is opened as it is. One that is compressed (gzip, bzip2, xz), begins with the mark of
    UTF-8, UTF-16 or UTF-32, is in UTF-16 without a mark, or ends its lines with CR alone is translated into a temporary
    one.

    Raises
    ------
    ReadingError
        If it cannot be opened, unpacked or decoded, or is of a kind that is refused; the message names the kind.
    """
    try:
        file = path.open("rb")
        head = file.read(_PIECE)
        if _kind(path, head) is None and not _mark(head) and not _ends_lines_with_cr(head):
            file.seek(0)
            return file
        file.close()
    except OSError as error:
        raise _unreadable(path, error) from error
    copy = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    for piece in _limited(path, _plain_pieces(path)):
        copy.write(piece)
    copy.seek(0)
    return copy


def plain_beginning(path: Path, most_bytes: int) -> bytes:
    """The first bytes of what `open_plain` opens; nothing more is unpacked for them.

    Raises
    ------
    ReadingError
        As `open_plain` does.
    """
    found = b""
    for piece in _plain_pieces(path):
        found += piece
        if len(found) >= most_bytes:
            break
    return found[:most_bytes]


def _plain_pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            unpack = _kind(path, file.read(_PIECE))
            file.seek(0)
            with file if unpack is None else unpack(file) as source:
                pieces = iter(partial(source.read, _PIECE), b"")
                head = next(pieces, b"")
                yield from _decoded(path, head, chain((head,), pieces))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise _unreadable(path, error) from error


def _kind(path: Path, head: bytes) -> Callable[[IO[bytes]], Any] | None:
    """Return what unpacks a file that begins so; None if the file is not compressed."""
    for begin, said in _REFUSED:
        if head.startswith(begin):
            raise ReadingError(f"{path} is {said} and give that")
    return next((unpack for begin, _, unpack in _UNPACKING if head.startswith(begin)), None)


def _mark(head: bytes) -> str:
    """The encoding that a mark at the beginning names, or UTF-16 by its zeros; "" if there is none."""
    named = next((name for mark, name in _MARKS if head.startswith(mark)), "")
    zeros = [head[end::2].count(0) for end in (0, 1)]
    if not named and max(zeros) > len(head) / 4 and min(zeros) == 0:  # most letters of tables are of ASCII
        return "utf-16-be" if zeros[0] else "utf-16-le"
    return named


def _ends_lines_with_cr(head: bytes) -> bool:
    """Whether at least as many lines end in CR alone as in LF: one that was appended may end in that."""
    alone = head.count(b"\r") - head.count(b"\r\n")
    return alone > 0 and alone >= head.count(b"\n")


def _decoded(path: Path, head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    encoding = _mark(head)
    if encoding:
        pieces = _recoded(path, encoding, pieces)
        head = next(pieces, b"")
        pieces = chain((head,), pieces)
    if _ends_lines_with_cr(head):
        pieces = (piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for piece in pieces)
    return pieces


def _recoded(path: Path, encoding: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same in UTF-8; what is no UTF-8 stays as it is, for those who can name the line."""
    if encoding == "utf-8-sig":
        yield next(pieces).removeprefix(codecs.BOM_UTF8)
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise ReadingError(
            f"{path} begins as {encoding.upper()} and goes on otherwise ({error}); save it in UTF-8"
        ) from error


def _limited(path: Path, pieces: Iterator[bytes]) -> Iterator[bytes]:
    num_bytes = 0
    for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > MOST_UNPACKED_BYTES:
            raise ReadingError(
                f"{path} has more than {MOST_UNPACKED_BYTES:,} bytes when it is unpacked, which is the most; unpack it "
                "yourself if it is meant to be so large"
            )
        yield piece


def _unreadable(path: Path, error: Exception) -> ReadingError:
    if isinstance(error, OSError) and error.strerror:
        return ReadingError(f"cannot read {path}: {error.strerror}")
    return ReadingError(f"cannot unpack {path}: {error}; it is damaged or cut off")
