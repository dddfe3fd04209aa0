"""The policies that a search tries: those of the catalog, and neighbours that differ in one option."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trainyard.serve.catalog import CATALOG, Entry, parse_policies
from trainyard.serve.policy import BatchPolicy

__all__ = ["CatalogChoice", "GivenChoice", "catalog_choices", "given_choices"]


@dataclass(frozen=True)
class _EntryOptions:
    """An entry of the catalog with values of the options that a search may change."""

    entry: Entry
    options: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, entry: Entry) -> _EntryOptions:
        """Return the entry with its default options."""
        parameters = inspect.signature(entry.factory).parameters
        return cls(entry, tuple((name, parameters[name].default) for name in entry.searched))

    def near(self) -> Iterator[_EntryOptions]:
        """Yield the options with the next smaller or the next larger value of one option."""
        for place, (name, value) in enumerate(self.options):
            values = self.entry.searched[name]
            smaller = [each for each in values if each < value]
            larger = [each for each in values if each > value]
            for other in (*smaller[-1:], *larger[:1]):
                options = (*self.options[:place], (name, other), *self.options[place + 1 :])
                yield replace(self, options=options)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.entry.name}({said})" if said else self.entry.name


@dataclass(frozen=True)
class CatalogChoice:
    """A batch policy of the catalog with an order of admission.

    Attributes
    ----------
    batches : the batch policy.
    admission : the order of admission; None for first come, first served.
    """

    batches: _EntryOptions
    admission: _EntryOptions | None = None

    @cached_property
    def policy(self) -> BatchPolicy:
        """The policy."""
        ((_, policy),) = parse_policies(str(self))
        return policy

    def near(self) -> Iterator[CatalogChoice]:
        """The choices that differ in one option."""
        for each in self.batches.near():
            yield replace(self, batches=each)
        if self.admission is not None:
            for other in self.admission.near():
                yield replace(self, admission=other)

    def __str__(self) -> str:
        return str(self.batches) if self.admission is None else f"{self.batches} + {self.admission}"


@dataclass(frozen=True)
class GivenChoice:
    """A policy as the user gave it; its options are not changed.

    Attributes
    ----------
    text : as it was given.
    policy : the policy.
    """

    text: str
    policy: BatchPolicy

    def near(self) -> Iterator[GivenChoice]:
        """None."""
        return iter(())

    def __str__(self) -> str:
        return self.text


def catalog_choices(admissions: Sequence[str] | None = None) -> tuple[CatalogChoice, ...]:
    """Every batch policy of the catalog with every order of admission, and with default options.

    Parameters
    ----------
    admissions : names of the orders beside first come, first served; by default all.
    """
    orders = [
        _EntryOptions.of(entry)
        for entry in CATALOG
        if entry.decides == "admission" and (admissions is None or entry.name in admissions)
    ]
    batches = [_EntryOptions.of(entry) for entry in CATALOG if entry.decides == "batches"]
    return tuple(CatalogChoice(each, order) for order in (None, *orders) for each in batches)


def given_choices(text: str) -> tuple[GivenChoice, ...]:
    """Policies that are named, as `parse_policies` reads them."""
    return tuple(GivenChoice(name, policy) for name, policy in parse_policies(text))
