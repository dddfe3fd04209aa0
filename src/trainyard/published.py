"""Published systems, as far as all levels share them: what a catalog says of one, and others' numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from trainyard.errors import TrainyardError


class System(Protocol):
    """An entry of a catalog."""

    @property
    def name(self) -> str: ...

    @property
    def factory(self) -> Callable[..., Any]: ...

    @property
    def title(self) -> str: ...

    @property
    def paper(self) -> str: ...

    @property
    def fidelity(self) -> Literal["exact", "simplified", "own"]: ...

    @property
    def claim_test(self) -> str: ...

    @property
    def left_out(self) -> str: ...

    @property
    def needs(self) -> Sequence[str]: ...

    @property
    def variants(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def module(self) -> str: ...


@dataclass(frozen=True)
class Row:
    """One published number.

    Attributes
    ----------
    label : which one.
    theirs, ours : in the table's unit.
    """

    label: str
    theirs: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours / self.theirs


class MissingFilesError(TrainyardError, ValueError):
    """A table is asked for without the files that it is computed from; the message says how to get them."""


@dataclass(frozen=True)
class Files:
    """Public files that a table is computed from, and that are not part of this package.

    Attributes
    ----------
    paths : of files and folders, relative to the folder that holds them.
    fetch : commands that fetch them.
    folder : that holds them after that.
    """

    paths: tuple[str, ...]
    fetch: str
    folder: str

    def command(self, name: str) -> str:
        """What to call to fetch them, and then to compute the tables of a system."""
        return f"{self.fetch} && trainyard reproduce {name} --files {self.folder}"

    def are_in(self, folder: Path) -> bool:
        """Whether a folder has all of them."""
        return all((folder / path).exists() for path in self.paths)

    def check(self, folder: Path) -> Path:
        """The folder, if all of them are there.

        Raises
        ------
        MissingFilesError
            If not.
        """
        missing = [path for path in self.paths if not (folder / path).exists()]
        if missing:
            raise MissingFilesError(
                f"{folder} has no {missing[0]}; fetch the files: {self.fetch}, then give --files {self.folder}"
            )
        return folder


@dataclass(frozen=True)
class PaperTable:
    """Numbers that others published beside ours.

    Attributes
    ----------
    source : the paper and its table, figure or section; the authors' program; or the closed form.
    unit : of both columns.
    method : how ours are computed.
    rows : computes them, one after the other; with ``files``, from the folder that has them.
    tolerance : largest relative difference between ours and theirs that the tests accept.
    caveat : why they differ; empty only where the tolerance is for rounding.
    is_slow : whether the rows are simulations that take seconds each.
    files : that the rows are computed from, if any.
    """

    source: str
    unit: str
    method: str
    rows: Callable[..., Iterable[Row]]
    tolerance: float = 0.03
    caveat: str = ""
    is_slow: bool = False
    files: Files | None = None

    def computed(self, folder: Path | None = None) -> Iterable[Row]:
        """The rows.

        Parameters
        ----------
        folder : with the files, for a table that needs some.

        Raises
        ------
        MissingFilesError
            If it needs files, and they are not there.
        """
        if self.files is None:
            return self.rows()
        if folder is None:
            raise MissingFilesError(f"{self.source}: computed from files; fetch them: {self.files.fetch}")
        return self.rows(self.files.check(folder))
