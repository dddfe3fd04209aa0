"""Random damage of files, as accidents and attackers do it; equal for equal seeds."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_WORD = re.compile(rb"[\w.+-]+")
_BOMB = b"\n".join(
    [
        b"a0: &a0 [no, no]",
        *(b"a%d: &a%d [%s]" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 10)),
    ]
)
NASTY = (
    b"", b"-1", b"0", b"0.5", b"1e18", b"1e300", b"1e999", b".inf", b"-.inf", b".nan", b"nan", b"inf", b"Infinity",
    b"NaN", b"9" * 25, b"9" * 5000, b"1000000000", b"1_000", b"0x10", b"1:30", b"\xd9\xa3", b"\xc2\xb2", b"null", b"~",
    b"true", b"yes", b"[]", b"{}", b"[1]", b"{a: 1}", b"[" * 200, b"{a: " * 200, b"{\"a\":" * 200, b"[" * 50_000,
    b"*a0", b"*a9", b"&a0 [*a0]", b"&x", b"!!python/name:os.system", b"!!int x", b"!!int ''", b"!!binary x", b"<<",
    b"'", b'"', b"|", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\r", b"\t", b",", b":", b"#", b"---",
    b"x" * 200_000, b"self.yaml", b"local:99999999", b"99999999x8xT4", b"S999", b"P", b"gpipe", b"2024-05-01T12:00:00",
)  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The file with one to three damages."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        data = chance.choice(_DAMAGES)(data, chance)
    return data


def _word(data: bytes, chance: random.Random) -> bytes:
    """Another word, number or nasty thing in the place of one."""
    words = list(_WORD.finditer(data))
    if not words:
        return data + chance.choice(NASTY)
    at = chance.choice(words)
    new = chance.choice(NASTY) if chance.random() < 0.8 else chance.choice(words)[0]
    return data[: at.start()] + new + data[at.end() :]


def _lines(change: Callable[[list[bytes], random.Random], object]) -> Callable[[bytes, random.Random], bytes]:
    def act(data: bytes, chance: random.Random) -> bytes:
        lines = data.splitlines(keepends=True) or [b""]
        change(lines, chance)
        return b"".join(lines)

    return act


def _twice(lines: list[bytes], chance: random.Random) -> None:
    lines.insert(chance.randrange(len(lines)), chance.choice(lines))


def _lost(lines: list[bytes], chance: random.Random) -> None:
    del lines[chance.randrange(len(lines))]


def _indented(lines: list[bytes], chance: random.Random) -> None:
    i = chance.randrange(len(lines))
    lines[i] = b"  " + lines[i]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _byte(data: bytes, chance: random.Random) -> bytes:
    i = chance.randrange(len(data) + 1)
    return data[:i] + bytes([chance.randrange(256)]) + data[i + 1 :]


def _bomb(data: bytes, chance: random.Random) -> bytes:
    return _word(_BOMB + b"\n" + data, chance).replace(b"*a0", b"*a9", 1)


_DAMAGES = (_word, _word, _word, _lines(_twice), _lines(_lost), _lines(_indented), _cut, _byte, _bomb)
