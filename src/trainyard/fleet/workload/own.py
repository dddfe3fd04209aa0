"""Trainyard's own form of a workload, to bring one and to keep one: data, and commands that only run where jobs do.

A CSV file with a header, one job per line. Only the first three columns must be there, and ``length_s``, or ``work`` and
``speeds``, or ``steps``; an empty field is the default.

=================== ================================================================================ =================
column              meaning                                                                          default
=================== ================================================================================ =================
name                of the job, unique
arrival_s           when it is submitted and could start, seconds
num_devices         of its gang
length_s            seconds that it runs on its gang                                                 see work, steps
work, speeds        work to be done, in any unit, and how much is done in a second:                  see length_s
                    ``TYPE:DEVICES=PER_S``, separated by spaces
                    ``TYPE:DEVICES/NODES=PER_S`` is over that many nodes and more, where it is another
steps               to be trained of ``model``, a name in the zoo or a Python file with ``model()``  see length_s
                    and its data, as `trainyard train` takes it, each of ``batch_size`` rows:
                    it is predicted how fast that is, and such jobs can run for real
strategies          how that is spread over its devices, as ``trainyard plan`` takes them            data_parallel
learning_rate, seed of the training                                                                  0.001, 0
checkpoint_every    steps between checkpoints; 0 is one at the end                                   5
command             line of a shell that runs for real, beside ``length_s``, or ``work`` and         none
                    ``speeds``, about as long as it takes; ``steps`` are those that it reports
folder              where the command is started; a path that is not absolute begins at the          that of the file
                    folder of this file
processes           the command is started once for each ``device``, or once for each ``node``;      device; node for
                    ``torchrun`` and ``accelerate launch`` start the processes of a node             these launchers
grace_s             seconds that it has to save after SIGTERM, before it is killed                   30
min_devices         the fewest and the most devices that it can run on                               num_devices
max_devices
device_types        that it can run on, separated by spaces                                          all
user, account       whose it is
virtual_cluster     to which it belongs
qos                 its quality of service, by name
weight              in weighted fairness, above 0                                                    1
deadline_s          by which it should end, seconds, counted as arrival_s                            none
ran_s               seconds for which it has already run when it arrives: it gets devices at once, and  0
                    runs for the rest of ``length_s`` and ``limit_s``
started_s           when it really started, where that is known, counted as arrival_s                not known
attempts            instead, where it was interrupted: when it really had devices, ``START:END``     not known
                    separated by spaces; ``START:END*DEVICES`` where these were not num_devices
limit_s             seconds that it was allowed to run, above 0                                      none
guaranteed          ``no``: it runs on what others leave                                             yes
priority            among the jobs of its virtual cluster, larger is more urgent                     0
gang                devices of each of its workers, separated by spaces, each on one node; a policy  as few as can be
                    that does not support that, or pinned_cell, does not take the job
pinned_cell         reserved part of the cluster that it must run in                                 anywhere
yields              ``yes``: it goes on without guarantee when one of higher priority takes it       no
cpus, memory_bytes  that it asks for, in all; binds where nodes say what they have                    a proportional share
busy                share of a device that it keeps busy, in (0, 1]                                  1
model, batch_size   what it trains, and samples (rows) of one step
=================== ================================================================================ =================

A YAML file has the same names: ``jobs:`` and a list of mappings, each to one text or number. It is held as a whole; CSV
is not.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.attempts import attempts_text, read_attempts
from trainyard.fleet.workload.job import Declared, Job, Profile, by_arrival
from trainyard.fleet.workload.lengths import check_length
from trainyard.fleet.workload.own_command import COMMAND_OPTIONS, command_fields, read_command
from trainyard.fleet.workload.own_training import (
    OPTIONS,
    check_names,
    read_training,
    refuse_options,
    training_fields,
)
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import RowError, Table
from trainyard.fleet.workload.speeds import Speeds
from trainyard.fleet.workload.training_job import Predicted
from trainyard.reading import Items, Section, parse_yaml, raised_as, read_text, shown
from trainyard.reading.defaults import changed_fields
from trainyard.reading.head import HasColumns, Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.limits import MOST_DEVICES, MOST_FIELD_BYTES, MOST_NAME, MOST_VALUES_OF_TABLES
from trainyard.reading.rows import Row

_MOST_VALUES_OF_A_JOB = 1_000
_NEEDED = ("name", "arrival_s", "num_devices")
_LENGTHS = ("length_s", "work", "speeds", "steps", *OPTIONS, "command", *COMMAND_OPTIONS)
COLUMNS = (
    *_NEEDED, *_LENGTHS, "min_devices", "max_devices", "device_types", "user", "account", "virtual_cluster", "qos",
    "weight", "deadline_s", "ran_s", "started_s", "attempts", "limit_s", "guaranteed", "priority", "gang", "pinned_cell",
    "yields", "cpus", "memory_bytes", "busy", "model", "batch_size",
)  # fmt: skip
_TEXTS = ("name", "user", "account", "virtual_cluster", "qos", "pinned_cell", "model")
_NUMBERS = ("deadline_s", "cpus", "memory_bytes")
_RECORDED = ("started_s", "attempts")
_POSITIVE = ("weight", "limit_s")
_TRUTH = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def read_own(
    path: Path, profiles: Path | None = None, left_out: LeftOut | None = None, own_files: bool = False
) -> Iterator[Job]:
    """Read the jobs of a CSV or YAML file in this form.

    Parameters
    ----------
    own_files : whether Python files that jobs name as their models are run; a job with such a file is refused else.
    """
    if path.suffix in (".yaml", ".yml"):
        return _yaml_jobs(path, left_out or LeftOut(strict=True), own_files)
    checked = partial(_checked, own_files=own_files)
    return Table(path, _NEEDED, left_out=left_out).in_order(
        lambda row: row.number("arrival_s"), checked, "name"
    )


def _yaml_jobs(path: Path, left_out: LeftOut, own_files: bool) -> Iterator[Job]:
    jobs: dict[str, Job] = {}
    for row in _yaml_rows(path, left_out):
        with left_out.faults():
            job = _checked(row, row.number("arrival_s"), own_files)
            if job.name in jobs:
                raise row.error("name", "a name that no other row has")
            jobs[job.name] = job
    return iter(by_arrival(tuple(jobs.values())))


def _checked(row: Row, arrival_s: float, own_files: bool) -> Job:
    job = _job(row, arrival_s)
    if row.fields.get("steps") and not row.fields.get("command"):
        check_names(row, own_files)
    return job


def _job(row: Row, arrival_s: float) -> Job:
    unknown = sorted(row.fields.keys() - set(COLUMNS))
    if unknown:
        raise row.error(unknown[0], f"no such field; there are {', '.join(COLUMNS)}")
    given = {name: value for name, value in row.fields.items() if value}
    row = row._replace(fields=given)
    for name, allowed in (("name", "a name of its own"), ("num_devices", "a whole number of at least 1")):
        if name not in given:
            raise row.error(name, allowed)
    for name in _TEXTS:
        if len(given.get(name, "")) > MOST_NAME:
            raise row.error(name, f"a text of at most {MOST_NAME:,} characters")
    size = row.count("num_devices", 1, MOST_DEVICES)
    busy = row.number("busy") if "busy" in given else 1.0
    if not 0 < busy <= 1:
        raise row.error("busy", "a number above 0 and at most 1")
    command = read_command(row)
    work, profile = _length(row, size, busy)
    check_length(row, arrival_s, work, profile)
    counts = ("priority", "batch_size")
    rest: dict[str, Any] = {name: given[name] for name in _TEXTS[1:] if name in given}
    if isinstance(profile, Predicted):
        rest["model"] = profile.training.model
    rest |= {name: row.count(name) for name in counts if name in given}
    rest |= {
        name: row.count(name, 0, MOST_DEVICES) for name in ("min_devices", "max_devices") if name in given
    }
    rest |= {name: _truth(row, name) for name in ("guaranteed", "yields") if name in given}
    rest |= {name: row.number(name) for name in _NUMBERS if name in given}
    rest |= {name: row.positive(name) for name in _POSITIVE if name in given}
    if "ran_s" in given:
        rest["ran_s"] = _ran_s(row, work)
        work -= rest["ran_s"]
        if "limit_s" in rest:
            rest["limit_s"] = max(0.0, rest["limit_s"] - rest["ran_s"])
    kinds = tuple(given.get("device_types", "").split())
    job = Job(
        given["name"],
        arrival_s,
        size,
        work,
        profile,
        device_types=kinds,
        gang=_gang(row, size),
        busy=busy,
        attempts=read_attempts(row, size),
        command=command,
        **rest,
    )
    if not job.least_devices <= size <= job.most_devices:
        raise row.error(
            "num_devices",
            f"a number from min_devices to max_devices, {job.least_devices} to {job.most_devices}",
        )
    return job


def _truth(row: Row, name: str) -> bool:
    truth = _TRUTH.get(row.fields[name].lower())
    if truth is None:
        raise row.error(name, "yes or no")
    return truth


def _ran_s(row: Row, length_s: float) -> float:
    """Read the time for which a job has run before it arrives."""
    if "length_s" not in row.fields or "command" in row.fields:
        raise row.error("ran_s", "a job with length_s and without a command")
    ran_s = row.number("ran_s")
    if ran_s and ran_s >= length_s:
        raise row.error("ran_s", f"a number below length_s, {length_s:g}")
    return ran_s


def _gang(row: Row, size: int) -> tuple[int, ...]:
    parts = row.fields.get("gang", "").split()
    gang = tuple(
        int(part) for part in parts if part.isdecimal() and len(part) <= len(str(size)) and int(part)
    )
    if parts and (len(gang) < len(parts) or sum(gang) != size):
        raise row.error("gang", f"whole numbers above 0 that add up to num_devices, {size}")
    return gang


def _length(row: Row, size: int, busy: float) -> tuple[float, Profile]:
    has_command = "command" in row.fields
    if sum(name in row.fields for name in ("length_s", "work", *(() if has_command else ("steps",)))) != 1:
        raise row.error(
            "length_s",
            "either length_s or work and speeds, beside a command: about as long as it takes"
            if has_command
            else "either length_s, or work and speeds, or steps with model and batch_size, and only one of them",
        )
    if "steps" in row.fields and not has_command:
        return read_training(row, size)
    refuse_options(row)
    if "length_s" in row.fields:
        return row.number("length_s"), Declared(size, busy)
    try:
        return row.number("work"), Speeds.parse(row.fields.get("speeds", ""))
    except FleetError as error:
        raise RowError(
            row.path, row.line, "field 'speeds' cannot be used", str(error), ", field 'speeds'"
        ) from error


def read_form(text: str, source: Path, own_files: bool = False) -> Job:
    """Read one job from a mapping as YAML or JSON, in this form; it arrives at 0 unless it says when.

    Parameters
    ----------
    source : what errors call the text.
    own_files : as of `read_own`.

    Raises
    ------
    FleetError
        If it is no job; the message says where in the text, and what is allowed.
    """
    row = _form_row(text, source)
    return _checked(row, row.number("arrival_s"), own_files)


def reread_form(text: str, source: Path) -> Job:
    """Read a text that `read_form` has read before; this does not load PyTorch, which takes seconds."""
    row = _form_row(text, source)
    return _job(row, row.number("arrival_s"))


def _form_row(text: str, source: Path) -> Row:
    with raised_as(FleetError):
        given = parse_yaml(text, source, texts=True, most_values=_MOST_VALUES_OF_A_JOB)
    if given is None:
        raise FleetError(f"{source}, line 1: nothing there; a job is a mapping of {', '.join(COLUMNS)}")
    row = _yaml_row(given, source)
    row.fields["arrival_s"] = row.fields["arrival_s"] or "0"
    return row


def _yaml_rows(path: Path, left_out: LeftOut) -> Iterator[Row]:
    with raised_as(FleetError):
        root = parse_yaml(read_text(path), path, texts=True, most_values=MOST_VALUES_OF_TABLES)
    jobs = root.get("jobs") if isinstance(root, Section) else None
    if not isinstance(root, Section) or not isinstance(jobs, Items):
        raise FleetError(f"{path}, line 1: no list 'jobs:'; a workload is 'jobs:' and a list of mappings")
    others = [key for key in root if key != "jobs"]
    if others:
        raise FleetError(
            f"{root.place(others[0])}: no such field; a workload is 'jobs:' and a list of mappings"
        )
    for line, job in zip(jobs.lines, jobs, strict=True):
        left_out.num_rows += 1
        with left_out.faults():
            yield _yaml_row(job, path, line)


def _yaml_row(job: Any, path: Path, line: int = 1) -> Row:
    if not isinstance(job, Section) or not all(isinstance(value, str) for value in job.values()):
        said = f"a job is a mapping of {', '.join(COLUMNS)}, each to one number or text"
        raise RowError(path, line, "no mapping of names to numbers and texts", said)
    long = next((name for name, value in job.items() if len(value) > MOST_FIELD_BYTES), None)
    if long is not None:
        said = f"{len(job[long]):,} characters; allowed are {MOST_FIELD_BYTES:,}, as in a table"
        raise RowError(path, job.lines[long], "a field that is too long", said, f", field {shown(long)}")
    return Row(path, job.line, dict.fromkeys(_NEEDED, "") | job, RowError)


def write_jobs(jobs: Iterable[Job], path: Path) -> int:
    """Write jobs in this form, as CSV or, if the file is named so, as YAML; return how many.

    Jobs of which only the length is known, jobs with `Speeds` and trainings can be written; `tabulated` makes jobs with
    `Speeds` of others.

    Raises
    ------
    FleetError
        If a job runs in a way that is not a table.
    """
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix in (".yaml", ".yml"):
            file.write("jobs:\n")
            for job in jobs:
                file.write(yaml.safe_dump([values_of(job)], sort_keys=False, width=1000))
                count += 1
            return count
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for job in jobs:
            writer.writerow(values_of(job))
            count += 1
    return count


def values_of(job: Job) -> dict[str, Any]:
    """A job in this form: what is not the default, by column.

    Raises
    ------
    FleetError
        If it runs in a way that is not a table.
    """
    values: dict[str, Any] = {
        "name": job.name,
        "arrival_s": float(job.arrival_s),
        "num_devices": job.num_devices,
    }
    if job.profile == Declared(job.num_devices, job.busy):
        values["length_s"] = float(job.work) + job.ran_s
    elif isinstance(job.profile, Speeds):
        values |= {"work": float(job.work), "speeds": str(job.profile)}
    elif isinstance(job.profile, Predicted):
        values |= training_fields(job.profile.training)
    else:
        raise FleetError(
            f"job {job.name!r} has a {type(job.profile).__name__}, which is not a table of speeds; write tabulated(job, "
            "cluster, num_devices) instead"
        )
    if job.command is not None:
        values |= command_fields(job.command)
    names = [name for name in COLUMNS[len(_NEEDED) + len(_LENGTHS) :] if name not in _RECORDED]
    for name, value in changed_fields(job, names).items():
        values[name] = " ".join(map(str, value)) if isinstance(value, tuple) else value
    if job.ran_s and "limit_s" in values:
        values["limit_s"] += job.ran_s
    return values | attempts_text(job.attempts, job.num_devices)


def _is_yaml(head: Head) -> bool:
    is_named_so = head.path.suffix in (".yaml", ".yml")
    return is_named_so and any(line.startswith("jobs:") for line in head.text.splitlines())


FORMAT = Format(
    "trainyard",
    "Trainyard's own: CSV or YAML of everything a job can say",
    HasColumns((_NEEDED,), or_else=_is_yaml),
    read_own,
    has_models=True,
)
