"""What holds for all pages: one colour has one meaning, numbers are aligned, and a page is small and has contents."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from web_browser import errors_shown, rendered

from trainyard.engine.categories import STANDARD_CATEGORIES
from trainyard.job.simulation.memory import MEMORY_KINDS
from trainyard.report.axes import layout
from trainyard.report.colors import COLORS, SERIES, THEMES, color_of
from trainyard.report.page import Figure, Table, html_page


def distance(first: str, second: str) -> int:
    """The largest difference of a channel of two colours."""
    return max(abs(int(first[i : i + 2], 16) - int(second[i : i + 2], 16)) for i in (1, 3, 5))


def test_one_colour_has_one_meaning() -> None:
    own = [color for color in COLORS.values() if color.startswith("#")]
    assert len(own) > 20
    for first, second in itertools.combinations((*own, *SERIES), 2):
        assert distance(first, second) >= 16, (first, second)


def test_whatever_takes_time_or_memory_has_a_colour_of_its_own() -> None:
    assert {*STANDARD_CATEGORIES, *MEMORY_KINDS} <= COLORS.keys()
    assert color_of("of a user") == color_of("of a user")


def test_both_themes_have_the_same_colours() -> None:
    assert THEMES["light"].keys() == THEMES["dark"].keys()


def test_no_page_has_a_colour_of_its_own() -> None:
    folder = Path(__file__).parents[2] / "src" / "trainyard" / "report"
    paths = [path for kind in ("py", "js", "css") for path in folder.glob(f"*.{kind}")]
    own = re.compile(r"""["' ]#[0-9a-fA-F]{3,6}\b|["']white["']""")
    assert [path.name for path in paths if own.search(path.read_text())] == ["colors.py"]


@pytest.mark.parametrize(
    ("cells", "is_number"),
    [
        (("12.5 min", "3.1 h", ""), True),
        (("1.00x", "best"), True),
        (("3.18 GiB of 31.7 GiB", "no plan"), True),
        (("76.3 ± 72.7 min", "-1,024"), True),
        (("1e-05", "<0.1 %", "5.52 /s"), True),
        (("3 x tp 1", "1 x tp 2"), False),
        (("0, 1", "2"), False),
        (("0", "job7"), False),
        (("packed", ""), False),
    ],
)
def test_numbers_are_aligned_to_the_right(cells: tuple[str, ...], is_number: bool) -> None:
    page = html_page("title", {}, [Table("table", ("name", "what"), tuple(("a", cell) for cell in cells))])
    assert page.count("<td class=number>") == (len(cells) if is_number else 0)
    assert ("<th class=number>what</th>" in page) is is_number


def test_the_best_row_is_marked() -> None:
    page = html_page("title", {}, [Table("table", ("policy",), (("fifo",), ("srtf",)), best=1)])
    assert page.count("<tr class=best><td>srtf</td>") == page.count("<tr class=best>") == 1


def test_long_pages_have_contents() -> None:
    few = [Table(f"table {i} & <more>", ("name",), (("a",),)) for i in range(6)]
    assert "<nav" not in html_page("title", {}, few)
    page = html_page("title", {}, [*few, few[0]])
    for number in range(7):
        assert f'<a href="#section{number}">table {number % 6} &amp; &lt;more&gt;</a>' in page
        assert page.count(f"<section id=section{number}>") == 1


def test_a_page_is_small_and_without_figures_smaller() -> None:
    figure = Figure("figure", [{"type": "bar", "x": [1], "y": [2]}], layout("x", "y"))
    assert len(html_page("title", {}, [figure]).encode()) < 800_000
    assert len(html_page("title", {}, [Table("table", ("name",), (("a",),))]).encode()) < 10_000


_PROBE = """<script>
drawn.then(() => {
  const paper = () => document.querySelector("#figure0 .main-svg").style.background;
  const seen = [paper()];
  for (const name of ["dark", "light"]) {
    redraw(name);
    seen.push(paper(), document.querySelector("#figure0 .xtitle").style.fill);
  }
  say("seen", JSON.stringify(seen));
});
</script>"""


def test_figures_have_the_colours_of_the_theme(tmp_path: Path) -> None:
    figure = Figure("figure", [{"type": "bar", "x": [1], "y": [2]}], layout("x", "y"))
    page = html_page("title", {}, [figure]).replace("</body>", f"{_PROBE}</body>")
    shown = errors_shown(rendered(page, tmp_path))
    rgb = {
        name: [
            f"rgb({', '.join(str(int(theme[key][i : i + 2], 16)) for i in (1, 3, 5))})"
            for key in ("paper", "ink")
        ]
        for name, theme in THEMES.items()
    }
    light, dark = rgb["light"], rgb["dark"]
    assert shown.strip() == f"seen: {[light[0], *dark, *light]}".replace("'", '"').replace('", "', '","')
