"""Pixels of a timeline in a real browser: each colour has the share of a row that its tasks have of the time."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import pytest
from web_browser import errors_shown, rendered

from trainyard.engine import Timeline
from trainyard.job.planning import load_model, plan, simulate_task
from trainyard.job.schedules import zero_bubble_h1
from trainyard.report.colors import COLORS
from trainyard.report.page import html_page
from trainyard.report.timeline_bars import used_resources
from trainyard.report.timeline_page import tasks_figure

_PROBE = """<script>
async function pixelRows(element) {
  const {_size, yaxis, width, height} = element._fullLayout, image = new Image();
  const source = await Plotly.toImage(element, {format: "png", width, height, scale: 1});
  await new Promise((resolve, reject) => Object.assign(image, {onload: resolve, onerror: reject, src: source}));
  const canvas = Object.assign(document.createElement("canvas"), {width, height});
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  return yaxis.tickvals.map(row => {
    const line = context.getImageData(_size.l, _size.t + yaxis.l2p(row), _size.w, 1).data, counts = {};
    for (let i = 0; i < line.length; i += 4) {
      const color = "#" + [...line.slice(i, i + 3)].map(each => each.toString(16).padStart(2, "0")).join("");
      counts[color] = (counts[color] ?? 0) + 4 / line.length;
    }
    return counts;
  });
}
drawn.then(() => new Promise(resolve => setTimeout(resolve, 1000))).then(async () => {
  const found = [];
  for (const element of document.querySelectorAll(".figure")) found.push(await pixelRows(element));
  say("pixels", JSON.stringify(found));
}).catch(problem => say("probe", problem));
</script>"""


def timelines() -> dict[str, Timeline]:
    """Of four plans: cut in every way, without bubbles, recomputed, and with its state divided."""
    model = load_model("gpt-tiny", 16)
    cut = plan(model, "1x4xV100-32G", "megatron(tensor=2, pipeline=2)")
    schedule = zero_bubble_h1(2, cut.plan.num_microbatches)
    return {
        "cut": cut.simulation.timeline,
        "zero bubble": simulate_task(replace(cut.plan, schedule=schedule), cut.task).timeline,
        "recomputed": plan(model, "1x4xV100-32G", "gpipe(stages=2, microbatches=4)").simulation.timeline,
        "divided": plan(model, "1x4xV100-32G", "zero(stage=3)").simulation.timeline,
    }


def test_each_colour_has_as_many_pixels_as_its_tasks_have_time(tmp_path: Path) -> None:
    shown = timelines()
    page = html_page("title", {}, [tasks_figure(each) for each in shown.values()], interactive=True)
    text = errors_shown(rendered(page.replace("</body>", f"{_PROBE}</body>"), tmp_path))
    name, _, found = html.unescape(text).partition(": ")
    assert name == "pixels", text
    seen: set[str] = set()
    for timeline, rows in zip(shown.values(), json.loads(found), strict=True):
        used, names = used_resources(timeline, 0.001), timeline.graph.category_names
        assert len(rows) == len(used)
        for shares, busy_s in zip(rows, timeline.busy_s()[used], strict=True):
            wanted = {
                COLORS[name]: s / timeline.makespan_s for name, s in zip(names, busy_s, strict=True) if s
            }
            drawn = {color: share for color, share in shares.items() if color in COLORS.values()}
            assert drawn == pytest.approx({color: wanted.get(color, 0.0) for color in drawn}, abs=0.004)
            assert sum(wanted.values()) - sum(drawn.values()) < 0.01
            seen |= drawn.keys()
    for name in ("forward", "backward", "weight_gradient", "recompute", "all_reduce", "all_gather", "send"):
        assert COLORS[name] in seen
