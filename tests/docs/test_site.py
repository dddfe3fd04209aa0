"""The documentation builds to a site in which no link is broken, and which loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(?P<address>[^\"'\s>]+)")
_HREF = re.compile(r"<a [^>]*href=[\"']?(?P<address>[^\"'\s>]+)")
# Nothing listens at this address: what is fetched fails the build.
_OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs mkdocs-material: make install")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **_OFFLINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return folder


def addresses(pattern: re.Pattern[str], page: Path) -> list[str]:
    return [match["address"] for match in pattern.finditer(page.read_text())]


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    loaded = {address for page in pages for address in addresses(_LOADED, page)}
    assert any(address.endswith(".css") for address in loaded)
    assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == []


@pytest.mark.slow
def test_links_out_of_docs_lead_to_pages_and_files_of_the_site(site: Path) -> None:
    assert "../#two-commands" in addresses(_HREF, site / "guide-fleet/index.html")
    home = addresses(_HREF, site / "index.html")
    assert {"guide-job/", "SECURITY/", "examples/gpt_on_python_source.py"} <= set(home)
    example = "examples/gpt_on_python_source.py"
    assert (site / example).read_text() == (ROOT / example).read_text()
