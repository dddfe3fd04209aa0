"""Every published system of every level has a page, a test of its claim, and tables that are as near as they say."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from shared_data import DATA, require_data

from trainyard.fleet import policies as fleet_policies
from trainyard.fleet import reproduce as fleet_reproduce
from trainyard.job import reproduce as job_reproduce
from trainyard.published import Files, MissingFilesError, PaperTable, Row
from trainyard.report.systems import LEVELS, Level, find, options
from trainyard.serve import policies as serve_policies
from trainyard.serve import reproduce as serve_reproduce
from trainyard.serve.catalog import CATALOG, parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.placing.policies import parse_placers

ROOT = Path(__file__).parents[2]
TRACES = DATA / "cluster"
SYSTEMS = [pytest.param(level, s, id=s.name) for level in LEVELS for s in level.systems]
# Simulations that take minutes, of a thousand layers or a thousand devices.
LONG = {
    "antman",
    "auto",
    "data_parallel",
    "expert_parallel",
    "gandiva",
    "hived",
    "megatron",
    "selective_recompute",
    "sjf",
    "sublinear",
    "vtc",  # its replica is compared with more of what the program says
}
# Packages of tables, and the modules in them that several tables use.
PACKAGES = {
    1: (job_reproduce, {"simulated"}),
    2: (fleet_reproduce, {"queueing", "priorities"}),
    3: (serve_reproduce, {"cache_use"}),
}
# Where the authors' files lie here, by the folder that fetching makes.
HERE = {
    "raw": {"cluster01.csv": "elasticflow-traces/raw/cluster01.csv"},
    "gavel/scheduler": {
        "traces": "gavel/traces",
        "simulation_throughputs.json": "gavel/simulation_throughputs.json",
    },
    "ElasticFlow/ElasticFlow": {
        "traces_for_ElasticFlow": "elasticflow/traces",
        "scheduler/throughputs_T4": "elasticflow/throughputs_T4",
    },
    "adaptdl/simulator": {"traces": "pollux/traces", "workloads": "pollux/workloads"},
    "artifacts/sia-simulator": {"traces": "sia/traces", "workloads": "sia/workloads"},
    "shockwave/scheduler": {
        "traces/reproduce": "shockwave/traces",
        "tacc_throughputs.json": "shockwave/tacc_throughputs.json",
    },
    "vidur/data/processed_traces": {"splitwise_conv.csv": "../serving/vidur/splitwise_conv.csv"},
    "nexus/tests/data/model_db/profiles": {
        f"TITAN_X_(Pascal)/caffe:{model}:1.txt": f"../serving/nexus-profiles/caffe_{model}_1.txt"
        for model in ("vgg16", "vgg_face", "vgg_s")
    },
}


def tables(*, slow: bool = False, files: bool = False) -> list[object]:
    """Tables of a kind as parameters; a name without a module is a failure of its own test, not of the collection.

    The one that is slow and on the authors' files is of Pollux, whose own tests make the same run.
    """
    found = []
    for level in LEVELS:
        modules = {module.name for module in pkgutil.iter_modules(PACKAGES[level.number][0].__path__)}
        for system in level.systems:
            for table in level.tables(system.name) if system.name in modules else ():
                if (table.files is not None, table.is_slow) == (files, slow):
                    marks = (pytest.mark.long,) if slow and system.name in LONG else ()
                    found.append(pytest.param(table, id=f"{system.name}: {table.source}", marks=marks))
    return found


@pytest.mark.parametrize(("level", "system"), SYSTEMS)
def test_every_system_has_tables(level: Level, system) -> None:
    found = level.tables(system.name)
    assert any(table.files is None for table in found), "a table that needs nothing but this package"
    for table in found:
        assert re.search(r"\barXiv \d{4}\.\d{5}\b|\b(19|20)\d\d\b", table.source)
        assert table.unit
        assert table.method
        # What is further off than rounding is explained.
        assert table.caveat or table.tolerance <= 0.03


@pytest.mark.parametrize(("level", "system"), SYSTEMS)
def test_every_system_is_found_and_its_claim_is_tested(level: Level, system) -> None:
    assert find(system.name) == (level, system)
    assert (ROOT / system.claim_test).is_file()
    assert not [option for option in options(system) if "frozenset" in option]


def test_the_python_calls_of_systems_name_what_there_is() -> None:
    """Of systems that no command line runs."""
    calls = [
        LEVELS[2].command(system) for system in LEVELS[2].systems if "import" in LEVELS[2].command(system)
    ]
    assert len(calls) == 2
    for call in calls:
        line, _, made = call.partition("\n\n")
        names: dict[str, object] = {}
        exec(line, names)
        function = names[made.partition("(")[0]]
        inspect.signature(function).bind(*made.partition("(")[2].rstrip(")").split(", "))  # type: ignore[arg-type]


def test_pages_say_which_serving_systems_also_decide_for_real_requests() -> None:
    """Those that `--policy` of the server takes, and the one that batches embeddings."""
    for entry in CATALOG:
        try:
            is_real = bool(parse_policies(entry.name))
        except ServeError:
            is_real = entry.decides == "encoder batches"
        assert ("for real requests" in LEVELS[2].runs(entry)) == is_real, entry.name


def test_pages_show_the_options_of_the_command_line() -> None:
    """A placement is made by its name with any of the options that its page lists."""
    made = []
    for entry in CATALOG:
        given = [option for option in options(entry) if "=" in option and "(" not in option]
        text = f"{entry.name}({', '.join(given)})"
        if entry.decides == "placement":
            assert given == options(entry)
            made += [entry.name] * len(parse_placers(text))
        elif entry.decides in ("batches", "admission"):
            made += [entry.name] * len(parse_policies(text))
    kinds = ("placement", "batches", "admission")
    assert made == [entry.name for entry in CATALOG if entry.decides in kinds]


def test_names_are_unique_over_levels() -> None:
    names = [system.name for level in LEVELS for system in level.systems]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.title)
def test_every_module_of_tables_is_that_of_a_system(level: Level) -> None:
    package, shared = PACKAGES[level.number]
    found = {module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg}
    assert found == {*(system.name for system in level.systems), *shared}


def test_every_policy_is_in_the_catalog() -> None:
    """A module that is not is what another one of its system is made of."""
    systems = {system.module for system in LEVELS[1].systems}
    modules = [
        m.name
        for m in pkgutil.walk_packages(fleet_policies.__path__, f"{fleet_policies.__name__}.")
        if not m.ispkg
    ]
    assert systems <= set(modules)
    for module in modules:
        beside = Path(importlib.import_module(module).__file__ or "").parent.glob("*.py")
        is_part = any(f"from {module} import" in other.read_text() for other in beside)
        assert module in systems or (is_part and module.rpartition(".")[0] != fleet_policies.__name__), module


def test_every_file_and_folder_of_serving_policies_is_that_of_a_system() -> None:
    """But for what several of them share."""
    found = {module.name for module in pkgutil.iter_modules(serve_policies.__path__)}
    modules = [system.module for system in LEVELS[2].systems if ".policies." in system.module]
    systems = {module.rpartition(".")[2] for module in modules}
    assert found == systems | {"admitting", "sorted_admission", "preemption", "token_budget"}


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown system 'tirseias'; known: tiresias, "):
        find("tirseias")


def check(table: PaperTable, folder: Path | None = None) -> list[Row]:
    """Every number is within the tolerance, and where theirs is largest, so is ours."""
    rows = list(table.computed(folder))
    assert len({row.label for row in rows}) == len(rows) > 0
    errors = {row.label: row.ratio - 1 for row in rows}
    assert max(map(abs, errors.values())) <= table.tolerance, errors
    largest = max(rows, key=lambda row: row.ours)
    assert largest.theirs == max(row.theirs for row in rows)
    return rows


@pytest.mark.parametrize("table", tables())
def test_ours_are_near_theirs(table: PaperTable) -> None:
    rows = check(table)
    assert min(rows, key=lambda row: row.theirs).ours == pytest.approx(min(row.ours for row in rows))


@pytest.mark.slow
@pytest.mark.parametrize("table", tables(slow=True))
def test_simulations_are_near_theirs(table: PaperTable) -> None:
    check(table)


@pytest.mark.slow
@pytest.mark.parametrize("table", tables(files=True))
def test_on_the_authors_files(table: PaperTable, tmp_path: Path) -> None:
    assert table.files is not None
    for path, here in HERE[table.files.folder].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(require_data(TRACES / here).resolve())
    check(table, tmp_path)


def test_missing_files_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    files = Files(("a.csv", "b"), "git clone somewhere", "somewhere/data")
    table = PaperTable("A, 2020", "s", "read", lambda folder: [Row(str(folder), 1.0, 1.0)], files=files)
    with pytest.raises(MissingFilesError, match="git clone somewhere"):
        table.computed()
    (tmp_path / "a.csv").touch()
    with pytest.raises(MissingFilesError, match=r"has no b; .*git clone somewhere.* --files somewhere/data"):
        table.computed(tmp_path)
    (tmp_path / "b").mkdir()
    assert [row.label for row in table.computed(tmp_path)] == [str(tmp_path)]
    assert files.command("x") == "git clone somewhere && trainyard reproduce x --files somewhere/data"
