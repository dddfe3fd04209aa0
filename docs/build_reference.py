"""Write docs/reference/ from docstrings: the public API, the command line, formats of traces, what policies and
strategies see and say.

python docs/build_reference.py            writes the pages
python docs/build_reference.py --check    fails if they are not up to date
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import sys
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "reference"
# Help is wrapped to the terminal; pages must not depend on whose it is.
os.environ["COLUMNS"] = "100"
os.environ["NO_COLOR"] = "1"


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {
        "api.md": api_page(),
        "cli.md": cli_page(),
        "traces.md": traces_page(),
        "policies.md": policies_page(),
        "strategies.md": strategies_page(),
    }


def api_page() -> str:
    """Everything in ``__all__`` of Trainyard and of its levels, in alphabetical order, functions after classes."""
    import trainyard
    import trainyard.fleet
    import trainyard.serve

    parts = [
        "# Python API", "", "Made from docstrings by `python docs/build_reference.py`.", "",
        "`import trainyard as ty` makes all names available, each imported when it is first used: `ty.train`, "
        "`ty.fleet.simulate`, `ty.serve.plan`.", "",
    ]  # fmt: skip
    for package in (trainyard, trainyard.fleet, trainyard.serve):
        found = {name: getattr(package, name) for name in package.__all__}
        order = sorted(found.items(), key=lambda item: (not inspect.isclass(item[1]), item[0]))
        for name, thing in order:
            if inspect.ismodule(thing):
                continue  # a level, whose names follow
            parts += [f"## `{package.__name__}.{name}`", "", *_entry(name, thing), ""]
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, thing: object) -> list[str]:
    where = f"Defined in `{thing.__module__}`."
    if not inspect.isclass(thing):
        return [f"```python\n{_signature(name, thing)}\n```", "", _prose(inspect.getdoc(thing)), "", where]
    parts = [_prose(thing.__doc__ and inspect.cleandoc(thing.__doc__)), "", where]
    if dataclasses.is_dataclass(thing):
        parts += _fields([(f.name, f.type, _default(f)) for f in dataclasses.fields(thing)])
    elif hasattr(thing, "_field_defaults"):  # a named tuple
        types = ((name, getattr(of, "__forward_arg__", of)) for name, of in thing.__annotations__.items())
        parts += _fields(
            [(name, of, thing._field_defaults.get(name, dataclasses.MISSING)) for name, of in types]
        )
    for member_name, member in vars(thing).items():
        documented = getattr(member, "__doc__", None) or isinstance(member, property)
        if member_name.startswith("_") or not documented or not _is_member(member):
            continue
        parts += ["", f"### `{name}.{member_name}`", ""]
        plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if inspect.isfunction(plain):
            parts += [f"```python\n{_signature(member_name, plain)}\n```", ""]
        parts.append(_prose(inspect.getdoc(member)))
    return parts


def _fields(fields: list[tuple[str, object, object]]) -> list[str]:
    """Names of fields with their types, and their defaults where these are short."""
    lines = []
    for name, of, default in fields:
        is_plain = default in (None, ()) or isinstance(default, bool | int | float | str)
        text = json.dumps(default) if isinstance(default, str) else repr(default) if is_plain else "..."
        said = "" if default is dataclasses.MISSING else f" = {text}"
        kind = str(of).replace("'", '"')
        lines += [] if name.startswith("_") else [f"{name}: {kind}{said}"]
    return ["", "```python", *lines, "```"]


def _default(field: dataclasses.Field[object]) -> object:
    made = field.default_factory is not dataclasses.MISSING
    return field.default_factory if made else field.default


def _is_member(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(
        member, property | staticmethod | classmethod | cached_property
    )


def _signature(name: str, function: object) -> str:
    text = str(inspect.signature(function))  # type: ignore[arg-type]
    # Defaults that are functions print their address, which is another one each time.
    text = re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", text).replace("'", "")
    if len(name) + len(text) < 100:
        return f"{name}{text}"
    inside, _, returned = text[1:].rpartition(") -> ")
    arguments = re.split(r", (?![^\[(]*[\])])", inside)
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f") -> {returned}"])


def _prose(text: str | None) -> str:
    """A numpy-style docstring as Markdown: sections become bold, parameters a list."""
    lines, parts, section = (text or "").splitlines(), [], ""
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line.strip() and set(line) == {"-"}:
            continue
        if line.strip() and following.strip() and set(following.strip()) == {"-"}:
            section = line.strip()
            parts.append(f"**{section}**\n")
        elif section in ("Parameters", "Attributes", "Raises", "Returns") and line and not line[0].isspace():
            parts.append(f"- {_term(line)}")
        else:
            parts.append(line)
    return "\n".join(parts).replace("``", "`").rstrip()


def _term(line: str) -> str:
    names, colon, rest = line.partition(" : ")
    return f"`{names}`: {rest}" if colon else line


def cli_page() -> str:
    """The help of every verb."""
    from trainyard.cli.dispatch import help_text
    from trainyard.cli.main import main
    from trainyard.cli.verbs import VERBS

    parts = ["# Command line", "", "Made from the verbs' options by `python docs/build_reference.py`.", ""]
    parts += ["```text", help_text(), "```", ""]
    for verb in VERBS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            main([verb, "--help"])
        lines = [line.rstrip() for line in said.getvalue().splitlines()]
        parts += [f"## `trainyard {verb}`", "", "```text", "\n".join(lines).strip(), "```", ""]
    return "\n".join(parts).rstrip() + "\n"


def traces_page() -> str:
    """What is read of every format of traces, and how."""
    from trainyard.fleet.workload.read import FORMATS, read_workload

    parts = ["# Formats of traces", "", "Made from docstrings by `python docs/build_reference.py`.", ""]
    parts += [_prose(inspect.getdoc(read_workload)), ""]
    by_module: dict[str, list[str]] = {}
    for entry in FORMATS.values():
        by_module.setdefault(entry.read.__module__, []).append(entry.name)
    for module, names in by_module.items():
        said = inspect.cleandoc(sys.modules[module].__doc__ or "")
        parts += [f"## {', '.join(f'`{name}`' for name in names)}", "", f"```text\n{said}\n```", ""]
    return "\n".join(parts).rstrip() + "\n"


def strategies_page() -> str:
    """What a strategy may ask, and what it is told."""
    from trainyard.job.setting import Prediction, RunnerUp, Setting, TaskLike, TaskTimer
    from trainyard.job.tables import LayerTable, OpTable, TensorTable

    parts = [
        "# What strategies ask and say", "", "Made from docstrings by `python docs/build_reference.py`.", "",
        "A strategy is a function from a `Setting` and the plan so far to a `Plan`. It uses nothing of the lowering, the "
        "simulator or the runtime: all that it needs of these it asks the setting.", "",
    ]  # fmt: skip
    for thing in (Setting, TaskLike, Prediction, OpTable, TensorTable, LayerTable, TaskTimer, RunnerUp):
        parts += [f"## `{thing.__name__}`", "", *_entry(thing.__name__, thing), ""]
    return "\n".join(parts).rstrip() + "\n"


def policies_page() -> str:
    """What a policy of the fleet sees, and what it says."""
    from trainyard.fleet.allocation import Allocation, Placed, Queue, Reasons, TimeFractions
    from trainyard.fleet.policy import Policy, Priority
    from trainyard.fleet.snapshot import Snapshot
    from trainyard.fleet.traits import Traits
    from trainyard.fleet.workload.job import Grant, Job, JobRequest
    from trainyard.hardware.cluster import Cluster

    parts = ["# Policies", "", "Made from docstrings by `python docs/build_reference.py`.", ""]
    parts += [
        "How to write one: [Write a policy](../guide-write-a-policy.md). `Ints`, `Floats` and `Bools` are NumPy arrays.",
        "",
    ]
    forms = Allocation, Queue, Placed, TimeFractions, Reasons, Traits
    for thing in (Policy, Snapshot, JobRequest, Job, Grant, Cluster, *forms, Priority):
        parts += [f"## `{thing.__name__}`", "", *_entry(thing.__name__, thing), ""]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"not up to date: {', '.join(stale)}; run `python docs/build_reference.py`")
        return 1
    print(f"written: {', '.join(stale) or 'nothing, all is up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
