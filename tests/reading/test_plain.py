"""Text files as others keep them are read as plain UTF-8, or refused by what they are."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.reading import ReadingError, open_plain, plain, plain_beginning

TEXT = "name,wait\nJörg,1\n" + "x,2\n" * 30_000
KEPT: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "a mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, the other end first": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-16 without a mark, the other end first": lambda text: text.encode("utf-16-be"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "CR alone": lambda text: text.replace("\n", "\r").encode(),
    "CR alone, but for the last line": lambda text: text[:-1].replace("\n", "\r").encode() + b"\n",
    "gzip": lambda text: gzip.compress(text.encode()),
    "bzip2": lambda text: bz2.compress(text.encode()),
    "xz": lambda text: lzma.compress(text.encode()),
    "all of it": lambda text: gzip.compress(text.replace("\n", "\r").encode("utf-16")),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(KEPT[name](TEXT))
    with open_plain(path) as file:
        assert file.read() == TEXT.encode()
        file.seek(10)
        assert file.readline() == "Jörg,1\n".encode()
    assert plain_beginning(path, 1000) == TEXT.encode()[:1000]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x28\xb5\x2f\xfd\x24", "is compressed with Zstandard; unpack it with `zstd -d` and give that"),
        (b"PK\x03\x04abc", "is a ZIP archive, or a workbook; unpack it, or export it as CSV and give that"),
        (b"PAR1", "is a Parquet file"),
        (gzip.compress(b"a,b\n" * 9, mtime=0)[:-9], "cannot unpack"),
        ("a,b\n".encode("utf-16") + b"\0", "begins as UTF-16 and goes on otherwise"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ReadingError) as error:
        open_plain(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_what_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"0" * 10_000, mtime=0))
    monkeypatch.setattr(plain, "MOST_UNPACKED_BYTES", 9_999)
    with pytest.raises(ReadingError, match="more than 9,999 bytes when it is unpacked"):
        open_plain(path)
