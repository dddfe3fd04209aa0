"""The commands of the guide to clusters, on clusters that tests have: only names of clusters and folders are others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def follow_guide(backend: str, cluster: str, folder: Path) -> str:
    """Train as the guide says on a backend; returns what is printed.

    Parameters
    ----------
    cluster : instead of the guide's.
    folder : to be in, with the jobs of the examples.
    """
    page = (ROOT / "docs" / "guide-fleet-clusters.md").read_text()
    (command,) = re.findall(rf"^trainyard (fleet run .* --backend {backend} .*)$", page, re.M)
    command = re.sub(r"--cluster \S+", f"--cluster {cluster}", command).replace("/shared/runs", "runs")
    shutil.copy(ROOT / "examples" / "fleet" / "trainings.yaml", folder / "jobs.yaml")
    trainyard = Path(sys.executable).parent / "trainyard"
    done = subprocess.run(
        [trainyard, *command.split()], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
