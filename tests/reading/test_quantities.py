"""Times and sizes as people write them."""

from __future__ import annotations

import pytest

from trainyard.reading import ReadingError
from trainyard.reading.quantities import parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1.5 s", 1.5), ("250us", 2.5e-4), ("2min", 120.0), (" 1h ", 3600.0)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "num"), [("40GB", 40 * 10**9), ("37.5GiB", 75 * 2**29), ("1 TB", 10**12), ("3MiB", 3 * 2**20)]
)
def test_sizes(text: str, num: int) -> None:
    assert parse_bytes(text) == num


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "-1s", "0s", "1e3s", "nan s", "5 days", "1s 2s", "٣s", "1" * 30 + "s"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(
        ReadingError, match="is not a time; allowed is a number above 0 and one of us, ms, s, min, h"
    ):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["40", "40gb", "GB", "0GiB", "-1GB", "40 bytes"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ReadingError, match=r"is not a size; .* such as 40GB"):
        parse_bytes(text)
