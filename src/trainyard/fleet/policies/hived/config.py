"""Reading configuration files of HiveD and OpenPAI: cell types, physical cells, virtual clusters. Data, never code.

Of HiveD's file the keys ``physicalCluster`` and ``virtualClusters`` are read; of OpenPAI's, the same inside the text
under ``hivedscheduler`` / ``config``. Addresses of servers, resources of a device (``skuTypes``) and the like are for
their programs, and passed over.

References
----------
H. Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020; the user manual of the
authors' program, whose form of a file this is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.cells import Chain
from trainyard.fleet.policies.hived.virtual import Layout, VirtualCell
from trainyard.hardware.cluster import Cluster, Node
from trainyard.reading import parse_yaml, raised_as, read_text, shown
from trainyard.reading.limits import MOST_DEVICES, MOST_NAME

_MOST_LEVELS = 32
_TYPE_KEYS = ("childCellType", "childCellNumber", "isNodeLevel")
_CELL_KEYS = ("cellType", "cellAddress", "pinnedCellId", "cellChildren")


def read_hived(path: Path) -> Layout:
    """The cluster and its virtual clusters.

    Device types are tried in the order of their top cells' names, the last first: the program leaves the order open, and
    its tests fix it so.

    Raises
    ------
    FleetError
        If the file cannot be read; the message names file and key, and says what is allowed.
    """
    with raised_as(FleetError):
        source = str(path)
        root = parse_yaml(read_text(path), source)
        inner = root.get("hivedscheduler") if isinstance(root, dict) else None
        if isinstance(inner, dict):
            source = f"{path}, hivedscheduler.config"
            root = parse_yaml(str(inner.get("config", "")), source)
    return _Reader(path, _Part(source, "", root, 1)).layout()


@dataclass(frozen=True)
class _Part:
    """A value in the file, and where it is."""

    source: str
    key: str
    value: Any
    line: int

    @property
    def place(self) -> str:
        return f"{self.source}, line {self.line}, {self.key or 'top level'}"

    def wrong(self, allowed: str) -> NoReturn:
        raise FleetError(f"{self.place}: {shown(self.value)} is not {allowed}")

    def get(self, name: str | int) -> _Part:
        value = self.value.get(name) if isinstance(self.value, dict) else self.value[name]  # type: ignore[index]
        key = f"[{name}]" if isinstance(name, int) else f".{name}" if self.key else str(name)
        lines = _lines_of(self.value)
        line = lines.get(name, self.line) if isinstance(lines, dict) else lines[name]
        return _Part(self.source, self.key + key, value, line)

    def mapping(self, keys: tuple[str, ...] = ()) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            self.wrong(f"a mapping{' with ' + ', '.join(keys) if keys else ''}")
        for name in self.value:
            if keys and name not in keys:
                line = _lines_of(self.value)[name]
                raise FleetError(
                    f"{self.source}, line {line}, {self.key}: unknown key {name!r}; there are {', '.join(keys)}"
                )
        return self.value

    def items(self) -> list[_Part]:
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            self.wrong("a list")
        return [self.get(i) for i in range(len(self.value))]

    def text(self) -> str:
        if isinstance(self.value, bool) or not isinstance(self.value, (str, int, float)):
            self.wrong("a name")
        if len(str(self.value)) > MOST_NAME:
            self.wrong(f"a name of at most {MOST_NAME} characters")
        return str(self.value)

    def count(self) -> int:
        if (
            isinstance(self.value, bool)
            or not isinstance(self.value, int)
            or not 0 < self.value <= MOST_DEVICES
        ):
            self.wrong(f"a whole number from 1 to {MOST_DEVICES}")
        return self.value


def _lines_of(value: Any) -> Any:
    """Lines of a mapping's keys, or of a list's members."""
    return value.lines


@dataclass
class _Kind:
    """Top cells of one type, while they are read: for every device its node, and its number there."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    node_level: int
    found: list[tuple[str, int]] = field(default_factory=list)


class _Reader:
    def __init__(self, path: Path, root: _Part) -> None:
        self.path = path
        root.mapping()
        physical = root.get("physicalCluster")
        physical.mapping()
        self.types, self.cells = physical.get("cellTypes"), physical.get("physicalCells")
        self.types.mapping()
        self.owners = root.get("virtualClusters")
        self.owners.mapping()
        self.kinds: dict[str, _Kind] = {}
        self.num_virtual = 0
        # Of every pinned cell its kind, its level, and its first device.
        self.pinned: dict[str, tuple[_Kind, int, int]] = {}
        self.nodes: dict[tuple[str, str], set[int]] = {}

    def layout(self) -> Layout:
        for i, cell in enumerate(self.cells.items()):
            cell.mapping(_CELL_KEYS)
            name = cell.get("cellType").text()
            if name not in self.types.mapping():
                cell.get("cellType").wrong(f"one of cellTypes: {', '.join(self.types.mapping())}")
            kind = self.kinds.setdefault(name, self._kind(name))
            if kind.sizes[-1] + sum(len(other.found) for other in self.kinds.values()) > MOST_DEVICES:
                self.cells.wrong(f"a list of cells with at most {MOST_DEVICES} devices together")
            self._add(kind, cell, len(kind.names) - 1, "", i)
        if not self.kinds:
            self.cells.wrong("a list with at least one cell")
        return self._made()

    def _kind(self, name: str) -> _Kind:
        """Follow a type down to the devices."""
        names, sizes, node_levels = [name], [1], []
        while (here := names[-1]) in self.types.mapping():
            part = self.types.get(here)
            part.mapping(_TYPE_KEYS)
            child, count = part.get("childCellType").text(), part.get("childCellNumber").count()
            if child in names:
                part.get("childCellType").wrong("a type below it: it holds itself")
            if part.value.get("isNodeLevel"):
                node_levels.append(len(names))
            if len(names) == _MOST_LEVELS:
                part.get("childCellType").wrong(f"at most {_MOST_LEVELS} types below each other")
            names.append(child)
            sizes = [size * count for size in sizes] + [1]
            if sizes[0] > MOST_DEVICES:
                part.get("childCellNumber").wrong(f"such that {name} has at most {MOST_DEVICES} devices")
        if len(node_levels) != 1:
            self.types.get(name).wrong(
                f"a type with one type with isNodeLevel: true among {', '.join(names[:-1])}; there are {len(node_levels)}"
            )
        return _Kind(tuple(reversed(names)), tuple(reversed(sizes)), len(names) - node_levels[0])

    def _add(self, kind: _Kind, cell: _Part, level: int, node: str, default: int) -> None:
        """Add a cell with all that is in it; a child without an address has the number it has by its place."""
        spec = cell.mapping(_CELL_KEYS) if cell.value is not None else {}
        if spec.get("cellType", kind.names[level]) != kind.names[level]:
            cell.get("cellType").wrong(kind.names[level])
        if spec.get("pinnedCellId") is not None:
            name = cell.get("pinnedCellId").text()
            if name in self.pinned:
                cell.get("pinnedCellId").wrong("a name of its own: another cell has it")
            self.pinned[name] = kind, level, len(kind.found)
        if level == kind.node_level:
            default = 0
            if spec.get("cellAddress") is None:
                raise FleetError(f"{cell.place}: {kind.names[level]} is a node, give its name as cellAddress")
            node = cell.get("cellAddress").text()
        if level == 0:
            self._add_device(kind, cell, node, default)
            return
        count = kind.sizes[level] // kind.sizes[level - 1]
        children = cell.get("cellChildren").items() if spec else []
        if children and len(children) != count:
            cell.get("cellChildren").wrong(f"a list of {count} cells, which {kind.names[level]} has")
        for i in range(count):
            child = (
                children[i]
                if children
                else _Part(cell.source, f"{cell.key}.cellChildren[{i}]", None, cell.line)
            )
            self._add(kind, child, level - 1, node, default * count + i)

    def _add_device(self, kind: _Kind, cell: _Part, node: str, default: int) -> None:
        number = default
        if cell.value is not None and cell.value.get("cellAddress") is not None:
            address = cell.get("cellAddress")
            if not address.text().isdecimal() or len(address.text()) > len(str(MOST_DEVICES)):
                address.wrong("the number of a device in its node")
            number = int(address.text())
        others = self.nodes.setdefault((node, kind.names[0]), set())
        if number in others:
            raise FleetError(
                f"{cell.place}: node {node!r} has device {number} of type {kind.names[0]} already; give every "
                "device once"
            )
        others.add(number)
        kind.found.append((node, number))

    def _made(self) -> Layout:
        """The devices of a node are numbered as their addresses are, nodes in the order of the file."""
        nodes = tuple(Node.named(kind, len(numbers)) for (_, kind), numbers in self.nodes.items())
        cluster = Cluster(self.path.name, nodes)
        device: dict[tuple[str, str, int], int] = {}
        for (node, leaf), numbers in self.nodes.items():
            for number in sorted(numbers):
                device[node, leaf, number] = len(device)
        ordered = sorted(self.kinds, reverse=True)
        chains = []
        for name in ordered:
            kind = self.kinds[name]
            devices = tuple(device[node, kind.names[0], number] for node, number in kind.found)
            chains.append(Chain(kind.names, kind.sizes, kind.node_level, devices))
        cells = [cell for owner in self.owners.mapping() for cell in self._cells_of(str(owner), ordered)]
        names = tuple(node for node, _ in self.nodes)
        try:
            return Layout(cluster, tuple(chains), tuple(map(str, self.owners.mapping())), tuple(cells), names)
        except FleetError as error:
            raise FleetError(f"{self.path}, virtualClusters: {error}") from error

    def _cells_of(self, owner: str, ordered: list[str]) -> list[VirtualCell]:
        spec = self.owners.get(owner)
        spec.mapping(("virtualCells", "pinnedCells"))
        found = []
        for cell in spec.get("virtualCells").items():
            cell.mapping(("cellType", "cellNumber"))
            top, *below = cell.get("cellType").text().split(".")
            if top not in self.kinds:
                cell.get("cellType").wrong(
                    f"a type that begins with that of a physical cell: {', '.join(ordered)}"
                )
            names = self.kinds[top].names
            if [top, *below] != list(reversed(names))[: 1 + len(below)]:
                cell.get("cellType").wrong(
                    f"a type and those below it, as far as wanted: {'.'.join(reversed(names))}"
                )
            level = len(names) - 1 - len(below)
            count = cell.get("cellNumber").count()
            if count * self.kinds[top].sizes[level] > MOST_DEVICES - self.num_virtual:
                cell.get("cellNumber").wrong(
                    f"such that virtual clusters have at most {MOST_DEVICES} devices together"
                )
            self.num_virtual += count * self.kinds[top].sizes[level]
            found += [VirtualCell(owner, ordered.index(top), level)] * count
        for cell in spec.get("pinnedCells").items():
            cell.mapping(("pinnedCellId",))
            name = cell.get("pinnedCellId").text()
            if name not in self.pinned:
                known = ", ".join(self.pinned) or "none"
                cell.get("pinnedCellId").wrong(f"the pinnedCellId of a physical cell; there are {known}")
            kind, level, first = self.pinned[name]
            chain = ordered.index(kind.names[-1])
            found.append(VirtualCell(owner, chain, level, name, first // kind.sizes[level]))
        return found
