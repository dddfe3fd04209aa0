"""The cluster of the design configuration of HiveD's authors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hived_design import DESIGN, Driver

from trainyard.fleet.policies.hived.config import read_hived
from trainyard.fleet.policies.hived.virtual import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    path = tmp_path / "design.yaml"
    path.write_text(DESIGN)
    return read_hived(path)


@pytest.fixture
def cluster(layout: Layout) -> Driver:
    return Driver(layout)
