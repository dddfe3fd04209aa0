"""The catalog and the strategy files agree, and each file is what a strategy file must be."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import trainyard.job.strategies
from trainyard.job.catalog import CATALOG, Entry, find, parse_strategies
from trainyard.job.plan import PlanError

ROOT = Path(__file__).parents[3]
FOLDER = Path(trainyard.job.strategies.__file__).parent
FILES = sorted(p for p in FOLDER.rglob("*.py") if p.name != "__init__.py")
ENTRIES = pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)


def _module(path: Path) -> str:
    return ".".join(("trainyard.job.strategies", *path.relative_to(FOLDER).with_suffix("").parts))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_is_in_the_catalog(path: Path) -> None:
    modules = {entry.module for entry in CATALOG}
    assert _module(path) in modules, f"add an entry for {path.name} to job/catalog.py"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_cites_its_paper_and_says_how_faithful_it_is(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.search(r"arXiv\s+\d{4}\.\d{5}|\b(19|20)\d\d\b", text), f"{path.name} has no citation"
    assert re.search(r"^Fidelity: (exact|simplified)\b", text, re.MULTILINE), (
        f"{path.name} has no fidelity note"
    )
    assert len(path.read_text().splitlines()) < 400


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file_imports_no_engine_runtime_lowering_or_other_strategy(path: Path) -> None:
    refused = ("engine", "job.run", "job.lower", "job.simulat", "job.strategies", "job.catalog")
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            inside = (name or "").removeprefix("trainyard.")
            assert not inside.startswith(refused), f"{path.name} imports {name}"


@ENTRIES
def test_entry_is_complete(entry: Entry) -> None:
    assert (ROOT / entry.claim_test).is_file(), f"{entry.name} has no claim test at {entry.claim_test}"
    assert entry.name in entry.claim_test or entry.name in (ROOT / entry.claim_test).read_text()
    assert re.search(r"arXiv \d{4}\.\d{5}", entry.paper)
    assert entry.left_out or entry.fidelity != "simplified", f"say what {entry.name} leaves out, and why"
    note = re.search(r"^Fidelity: (\w+)", importlib.import_module(entry.module).__doc__ or "", re.MULTILINE)
    assert note is not None
    assert note[1] == entry.fidelity
    assert entry.name == entry.factory.__name__


@ENTRIES
def test_options_are_keywords_with_defaults(entry: Entry) -> None:
    options = inspect.signature(entry.factory).parameters.values()
    assert all(o.kind is o.KEYWORD_ONLY and o.default is not o.empty for o in options)
    for variant in entry.variants.values():
        entry.factory(**variant)
    for section in ("Returns", "Examples"):
        assert section in (entry.factory.__doc__ or ""), f"{entry.name} lacks {section}"


def test_names_mean_something_in_the_catalog_only() -> None:
    """Nothing else asks which strategy it has: no comparison with a name of the catalog, nor a look-up by one."""
    source = FOLDER.parents[1]
    names = {entry.name for entry in CATALOG}
    for path in sorted({*source.rglob("*.py")} - {source / "job" / "catalog.py"}):
        text = path.read_text()
        if not any(f'"{name}"' in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare | ast.MatchValue):
                compared = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not compared & names, f"{path}, line {node.lineno}: {compared & names}"


def test_names_are_unique() -> None:
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)


@pytest.mark.parametrize("module", sorted({e.module for e in CATALOG} | {"trainyard.job.catalog"}))
def test_examples(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("megatorn", "known: megatron, "),
        ("gpipe(stage=3)", "options: stages, microbatches, recompute"),
        ("gpipe(3)", "cannot read"),
        ("gpipe(stages=x)", "must be a number"),
        ("gpipe zero", "cannot read"),
        ("", "cannot read"),
        ("zero(stage=7)", "stages 1, 2 and 3"),
    ],
)
def test_unreadable_strategies_are_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=re.escape(said)):
        parse_strategies(text)


def test_find_lists_close_names_first() -> None:
    with pytest.raises(PlanError, match="known: sublinear, "):
        find("sublinaer")
