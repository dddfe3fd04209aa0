"""What the daemon's page draws, in a real browser, beside the numbers: devices over time, losses and speeds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser import CHROMIUM, Page, opened
from daemons import answering
from seeded import LOSSES, NOW_S, REASON, SECONDS, SPANS, WINDOW_S, seeded_daemon

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.users import Users

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: none is on the PATH, and CHROMIUM is not set"
)

ANN = "ann-has-this-token"
_BARS = """[...document.querySelectorAll("#timeline rect")].map(bar => {
  const {left, right, top, bottom} = bar.getBoundingClientRect(), fill = getComputedStyle(bar).fill;
  return {job: bar.dataset.job, said: bar.textContent, left, right, top, bottom, fill};
})"""
_LINES = """[...document.querySelectorAll("#timeline line")].map(line => {
  const {left, top, width} = line.getBoundingClientRect();
  return {left, top, width};
})"""
_PIXELS = """(async () => {
  const bytes = Uint8Array.from(atob("%s"), letter => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  return %s.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data.slice(0, 3)]);
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("drawing")
    users = Users({ANN: "ann"})
    with (
        answering(Api(seeded_daemon(folder), users)) as url,
        opened(f"{url}/#token={ANN}", folder) as found,
    ):
        size = {"width": 1200, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
        found.ask("Emulation.setDeviceMetricsOverride", **size)
        found.value("window.before = document.querySelector('#timeline svg')")
        found.wait("running", "steps/s")
        # Drawn anew, in the new width.
        found.until("document.querySelector('#timeline svg') !== window.before")
        yield found


def pixels(page: Page, places: list[tuple[int, int]]) -> list[list[int]]:
    """The colours that a picture of the page has at some places."""
    picture = page.ask("Page.captureScreenshot", format="png")["data"]
    expression = _PIXELS % (picture, json.dumps(places))
    found = page.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in found, found
    colors: list[list[int]] = found["result"]["value"]
    return colors


def scales(page: Page) -> tuple[float, float, float, float]:
    """Left and right end of the window, the top of device 0, and the height of a device, in pixels."""
    lines: list[dict[str, Any]] = page.value(_LINES)
    across = [line["left"] for line in lines if line["width"] == 0]
    nodes = [line["top"] for line in lines if line["width"] > 0]
    assert len(nodes) == 2, "a line for each node"
    return min(across), max(across), nodes[0], (nodes[1] - nodes[0]) / 2


def test_bars_are_where_the_numbers_say(page: Page) -> None:
    left, right, top, height = scales(page)
    begin_s = NOW_S - WINDOW_S
    drawn = []
    for bar in page.value(_BARS):
        ends_s = [begin_s + (bar[side] - left) / (right - left) * WINDOW_S for side in ("left", "right")]
        rows = [(bar[side] - top) / height for side in ("top", "bottom")]
        first, last = map(round, rows)
        assert rows == pytest.approx([first, last], abs=0.1), "a bar fills the rows of its devices"
        drawn.append((bar["job"], tuple(range(first, last)), *(NOW_S - end_s for end_s in ends_s)))
    wanted = [
        ("a", (0, 1), WINDOW_S, 3000.0),  # it began before the window
        ("b", (2,), 3000.0, 2000.0),
        ("a", (0,), 1800.0, 0.0),
        ("a", (2,), 1800.0, 0.0),
    ]
    assert len(SPANS) == 3
    key = lambda bar: (-bar[2], bar[1])  # noqa: E731
    for found, expected in zip(sorted(drawn, key=key), sorted(wanted, key=key), strict=True):
        assert found[:2] == expected[:2]
        assert found[2:] == pytest.approx(expected[2:], abs=2 * WINDOW_S / (right - left))


def test_pixels_are_coloured_where_a_job_had_a_device_and_nowhere_else(page: Page) -> None:
    bars, (left, right, top, height) = page.value(_BARS), scales(page)
    places = [(round(bar["right"]) - 4, round((bar["top"] + bar["bottom"]) / 2)) for bar in bars]
    for bar, color in zip(bars, pixels(page, places), strict=True):
        fill = [int(part) for part in re.findall(r"\d+", bar["fill"])[:3]]
        assert color == pytest.approx([0.85 * part + 0.15 * 255 for part in fill], abs=3)
    assert len({bar["fill"] for bar in bars}) == 2, "each job has a colour of its own"
    # Device 3 was never used, and device 0 not from 3000 to 1800 seconds ago.
    shares_and_devices = [(0.25, 3), (0.9, 3), (0.3, 0)]
    idle = [
        (round(left + share * (right - left)), round(top + (d + 0.5) * height))
        for share, d in shares_and_devices
    ]
    assert pixels(page, idle) == [[255, 255, 255]] * 3


def curve(page: Page, number: int) -> tuple[list[tuple[float, float]], str]:
    """The places of a curve of the job that runs, and the text beside it."""
    cell = f"document.querySelectorAll('#running .curve')[{number}]"
    points = str(page.value(f"{cell}.querySelector('polyline').getAttribute('points')"))
    places = [tuple(map(float, place.split(","))) for place in points.split()]
    return [(x, y) for x, y in places], str(page.value(f"{cell}.lastChild.textContent"))


@pytest.mark.parametrize(
    ("number", "values", "said"),
    [(0, LOSSES, "3.400"), (1, [1 / s for s in SECONDS], "1.449 steps/s")],
    ids=["loss", "speed"],
)
def test_curves_are_the_numbers(page: Page, number: int, values: list[float], said: str) -> None:
    places, text = curve(page, number)
    assert text == said
    assert f"{values[-1]:.4g}" == f"{float(said.split()[0]):.4g}"
    xs, ys = zip(*places, strict=True)
    steps = [1 + (x - xs[0]) / (xs[-1] - xs[0]) * (len(values) - 1) for x in xs]
    assert steps == pytest.approx(range(1, len(values) + 1))
    least, most = min(values), max(values)
    shown = [most - (y - min(ys)) / (max(ys) - min(ys)) * (most - least) for y in ys]
    assert shown == pytest.approx(values)


def test_who_waits_is_shown_with_the_reason(page: Page) -> None:
    assert re.search(r"c\s+ann\s+gpt-tiny\s+4\s+0 of 20\s.*\s83\.3 min\s", page.text("queue"))
    assert REASON in page.text("queue")
    assert page.text("errors") == ""


def test_a_longer_window_has_what_was_before(page: Page) -> None:
    before = page.value("document.querySelector('#timeline rect title').textContent")
    assert "a on device" in before
    page.value("window.before = document.querySelector('#timeline svg')")
    page.value("document.getElementById('window').value = '21600'")
    page.until("document.querySelector('#timeline svg') !== window.before")
    page.value("window.before = document.querySelector('#timeline svg')")
    # The picture before may have been asked for already.
    page.until("document.querySelector('#timeline svg') !== window.before")
    left, (begin, right, _, _) = min(bar["left"] for bar in page.value(_BARS)), scales(page)
    assert (right - left) / (right - begin) * 21600 == pytest.approx(4000.0, abs=50.0)
