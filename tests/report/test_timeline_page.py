"""The page stays small, says what it leaves out, and renders in a browser without errors."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_figures import figures_of
from report_timelines import small_timeline
from web_browser import errors_shown, rendered

from trainyard.engine import TaskGraphBuilder, simulate
from trainyard.report.page import Table
from trainyard.report.timeline_bars import gantt_bars, thin_curve, used_resources, visible_curve
from trainyard.report.timeline_page import timeline_page


def unzipped(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


def test_the_page_renders_in_a_browser(tmp_path: Path) -> None:
    # Labels that would break a page that does not escape them.
    timeline = small_timeline(label="</script><b>&{F}")
    tables = [Table("Plans", ("plan", "step"), (("<1F1B>", "3 ms"),))]
    document = rendered(timeline_page(timeline, "A <step>", {"step": "3 ms"}, tables), tmp_path)
    assert errors_shown(document) == ""
    for index in range(3):
        figure = document[document.index(f'<div id="figure{index}"') :]
        assert "main-svg" in figure.split("</section>")[0]
    # Seven tasks and six sends are bars of the timeline, beside an empty one for each of three names in the legend.
    bars = document[document.index('<div id="figure1"') :].split("</section>")[0]
    assert bars.count('class="point"') == 13 + 3
    assert "A &lt;step&gt;" in document
    assert "&lt;1F1B&gt;" in document


def test_an_error_in_a_script_is_seen(tmp_path: Path) -> None:
    page = timeline_page(small_timeline(), "broken", {})
    broken = page.replace('draw("figure1", {', 'draw("nowhere", {').replace(
        "draw('figure2'", "drew('figure2'"
    )
    assert broken != page
    shown = errors_shown(rendered(broken, tmp_path))
    assert "nowhere" in shown or "drew is not defined" in shown


def test_the_page_loads_nothing() -> None:
    page = timeline_page(small_timeline(), "alone", {})
    assert not re.search(
        r"<(script|link|img|iframe)[^>]*\b(src|href)=", page.replace("\\/", "/").split("<script>")[0]
    )
    assert "<script src" not in page


def test_a_large_timeline_is_drawn_with_few_bars_and_says_so() -> None:
    timeline = small_timeline(num_devices=60, num_microbatches=400)
    page = timeline_page(timeline, "large", {})
    assert timeline.graph.num_tasks > 40_000
    assert "The first 96 of 120 resources." in page
    assert "1 resource with work for less than 0.1 % of the time: no row." in page
    assert "short tasks are drawn together" in page
    assert "The first 32 of 60 devices." in page


@pytest.mark.parametrize("max_bars", [40, 200, 2000])
def test_bars_drawn_together_keep_the_time_of_their_tasks(max_bars: int) -> None:
    timeline = small_timeline(num_devices=4, num_microbatches=200)
    graph = timeline.graph
    shown = used_resources(timeline)[:6]
    bars = gantt_bars(timeline, shown, max_bars)
    assert len(bars) <= max_bars
    busy_s = np.zeros((6, len(graph.category_names)))
    np.add.at(busy_s, (bars.row, bars.category), bars.length_s)
    np.testing.assert_allclose(busy_s, timeline.busy_s()[shown], rtol=1e-9)
    assert bars.num_tasks.sum() == np.isin(graph.resources, shown).sum()
    same_row = bars.row[1:] == bars.row[:-1]
    ends_s = bars.start_s + bars.length_s
    assert np.all(bars.start_s[1:][same_row] >= ends_s[:-1][same_row] - 1e-12)


def test_figures_have_the_numbers_of_the_timeline() -> None:
    """Three forwards of 2 ms on each of two devices, each followed by a send of 0.5 ms; the last task ends at 9.5 ms.

    Of the sends of a device only the last is exposed: the others run beside a forward.
    """
    figures = figures_of(timeline_page(small_timeline(), "title", {}))
    time, memory, tasks = (figures[name][0] for name in ("Where the time goes", "Memory in use", "Timeline"))
    drawn = {each["name"]: each["x"] for each in time["data"]}
    assert drawn == {"forward": [6.0, 6.0], "exposed send": [0.5, 0.5], "bubble": [3.0, 3.0]}
    shares = {each["name"]: each["customdata"] for each in time["data"]}
    assert shares == {name: pytest.approx([100 * ms / 9.5 for ms in drawn[name]]) for name in drawn}
    for figure in (time, memory, tasks):
        assert figure["layout"]["xaxis"] == {"title": {"text": "time (ms)"}, "range": [0, pytest.approx(9.5)]}
    # A forward takes 2 MiB when it starts and leaves 1 MiB when it ends, beside the 1 MiB that are always there.
    assert memory["layout"]["yaxis"]["title"]["text"] == "memory (MiB)"
    for name, starts_ms, line in zip(
        ("gpu 0", "gpu 1"), ((0, 2, 4), (2.5, 4.5, 6.5)), memory["data"], strict=True
    ):
        assert line["name"] == f"{name}, peak 5 MiB"
        levels = dict(zip(line["x"], line["y"], strict=True))
        assert [levels[ms] for ms in starts_ms] == [3, 4, 5]
        assert (line["x"][-1], line["y"][-1]) == (9.5, 4)
    bars = tasks["bars"]
    row, category, start, length = np.frombuffer(unzipped(bars["columns"]), "<u4").reshape(4, -1)
    names, labels = [each["name"] for each in tasks["data"]], json.loads(unzipped(bars["labels"]))
    starts_ms, lengths_ms = start * bars["step"], length * bars["step"]
    forwards = sorted(
        (labels[i].split()[0], int(row[i]), float(starts_ms[i]), float(lengths_ms[i]))
        for i in range(len(row))
        if names[category[i]] == "forward"
    )
    wanted = [
        (f"F{n}", at, start_ms, 2.0) for n in range(3) for at, start_ms in ((0, 2.0 * n), (2, 2.5 + 2.0 * n))
    ]
    assert [each[:2] for each in forwards] == [each[:2] for each in wanted]
    assert [each[2:] for each in forwards] == [pytest.approx(each[2:], abs=1e-6) for each in wanted]
    assert (bars["unit"], len(row)) == ("ms", 13)


def test_rows_go_device_by_device() -> None:
    assert used_resources(small_timeline()).tolist() == [0, 2, 1, 3, 4]


def test_resources_without_tasks_have_no_row() -> None:
    builder = TaskGraphBuilder()
    device = builder.add_device("gpu 0")
    builder.add_resource("idle", device)
    builder.add_task(0.001, resources=builder.add_resource("compute", device), category="forward")
    assert used_resources(simulate(builder.build())).tolist() == [1]


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(-9, 9)), min_size=1, max_size=60), st.integers(4, 40)
)
def test_a_thinned_curve_keeps_its_peak_and_its_end(points: list[tuple[int, int]], max_points: int) -> None:
    points = sorted(points, key=lambda p: p[0])
    times_s = np.array([float(t) for t, _ in points])
    values = np.array([v for _, v in points])
    for curve_s, curve in (
        visible_curve(times_s, values),
        thin_curve(times_s, values, max_points),
    ):
        assert curve.max() == values.max()
        assert curve[-1] == values[-1]
        assert curve_s[0] == times_s[0]
        assert set(zip(curve_s, curve, strict=True)) <= set(zip(times_s, values, strict=True))
    most = max_points if times_s[-1] > times_s[0] else len(points)
    assert len(thin_curve(times_s, values, max_points)[0]) <= most
