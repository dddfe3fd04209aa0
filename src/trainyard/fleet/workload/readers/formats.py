"""What a trace format is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.fleet.workload.job import Job
from trainyard.reading.head import Head


@dataclass(frozen=True)
class Format:
    """A trace format.

    Attributes
    ----------
    name : for ``read_workload`` and the command line.
    about : one line.
    matches : whether a file that begins so is of it.
    read : the jobs of a file in the order of arrival; ``left_out`` gets the rows that give none, and ``profiles`` is
        where these are.
    profiles : what that is, where there are such; empty where a trace says all.
    needs_profiles : whether it cannot do without.
    by_type : whether profiles are files by device type; then ``read`` takes ``device_types`` of the cluster, too.
    is_dated : whether times are dates; then ``read`` takes the ``zone`` of those that name none, too, and gives jobs
        with seconds since 1970.
    timezone : of those, where the format fixes it.
    has_models : whether jobs may name models, and so Python files; then ``read`` takes ``own_files``, too.
    may_overlap : whether files of one folder may have the same job: one of the same name that was submitted at the same
        moment.
    """

    name: str
    about: str
    matches: Callable[[Head], bool]
    read: Callable[..., Iterator[Job]]
    profiles: str = ""
    needs_profiles: bool = False
    by_type: bool = False
    is_dated: bool = False
    timezone: str = ""
    has_models: bool = False
    may_overlap: bool = False
