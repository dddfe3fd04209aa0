"""The wheel has all files that commands need: they run from it, where there is no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from trainyard.distribution import NAME, VERSION

pytest.importorskip("hatchling", reason="needs hatchling, to build the wheel: make install")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "trainyard"
# As in a user's shell, nothing says where the checkout is. Loops are not compiled, which takes a minute for each level.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {
    "NUMBA_DISABLE_JIT": "1"
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*build, "-w", folder, ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel, and shares with this one what else is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    bin_folder = folder / "bin"
    (packages,) = folder.glob("lib/python*/site-packages")
    # Not the checkout that is installed here: its metadata, and the file that leads to it.
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("trainyard") and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    install = [sys.executable, "-m", "pip", "--python", bin_folder / "python", "install"]
    done = subprocess.run(
        [*install, "--no-index", "--no-deps", "--no-compile", wheel],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (packages / "trainyard").is_dir()
    return bin_folder / "trainyard"


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    own = {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    assert packed == own


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == (NAME, VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"


def test_links_of_the_description_lead_somewhere_without_the_repository(wheel: Path) -> None:
    text = metadata_of(wheel).get_payload()
    assert isinstance(text, str)
    assert text.startswith("# Trainyard\n")
    assert [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target] == []
    assert "From a model to a running plan (`docs/guide-job.md`): every step" in text


FLEET = "fleet simulate --trace jobs.csv --cluster 4x4 --policy fifo,srtf"
SERVE = "serve simulate --requests requests.csv --model llama3-8b --cluster 1x1xA100-80G --cache-memory 3GB"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--help", "`trainyard VERB --help` lists a verb's options"),
        ("--version", f"trainyard {VERSION}"),
        (f"{FLEET} --html page.html", "jobs.csv on 4x4: 60 jobs, 16 devices"),
        ("plan gpt-tiny --cluster 1x2xA100-80G --rows 8", "gpt-tiny on 2 ranks"),
        (SERVE, "requests.csv: 120 requests; 1 replica of llama3-8b on 1x1xA100-80G"),
    ],
)
def test_commands_run_outside_of_the_checkout(
    command: Path, arguments: str, line: str, tmp_path: Path
) -> None:
    for name in ("fleet/jobs.csv", "serve/requests.csv"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    done = subprocess.run(
        [command, *arguments.split()], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert line in done.stdout


def test_the_command_is_that_of_the_wheel(command: Path, tmp_path: Path) -> None:
    where = [command.parent / "python", "-c", "import trainyard; print(trainyard.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(command.parents[1])
