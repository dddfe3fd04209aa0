"""Clusters as users give them: in text form, as ``local``, or as a YAML file.

The full form names every device, node and link once::

    name: two old machines
    devices: [{name: T4, memory_bytes: ..., ...}]     # or the name of a preset: [T4]
    topologies: [{name: ..., num_devices: 2, links: [...], edges: [[gpu0, switch, 0], ...]}]
    nodes: [{topology: 0, devices: [0, 0], count: 2}]  # indices into the two lists above
    fabric: {name: ..., links: [...], edges: [[node0, spine, 0], ...]}   # optional

A device of which only the name is known is ``{name: V100}``, and a node with such devices has no topology. Nodes may
say what their hosts have, ``cpus: 96``, ``memory_bytes: 5e11`` and ``rack: r1``.

The short form is the text form under one key: ``cluster: 16x8xA100-80G``. Both forms may name partitions, say when
nodes come and go or are reserved, priorities of qualities of service, and prices of devices::

    cluster: 8x8xV100@96cpu,1440GiB+4x8xA100@128cpu,2000GiB
    partitions:
      gpu: 0-7          # nodes are numbered from 0, in the order of the line above
      a100: 8-11
      debug: 0,8        # a node may be in several
    changes:            # of nodes, over time: see `NodeChange`
      - {at_s: 86400, leave: 0-1}
      - {at_s: 172800, come: 0-1}
    reservations:       # for users or accounts, or for nobody: maintenance; see `Reservation`
      - {from_s: 90000, until_s: 97200, nodes: 2-7}
      - {from_s: 97200, until_s: 176400, nodes: 8-11, accounts: [vision]}
    qos: {high: 1000, low: -1000}      # priorities that a QOS adds to those of its jobs
    prices: {V100: 2.48, A100: 4.10}   # of one device for an hour; types that the cluster lacks may have one, too
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainyard.hardware.cluster import Cluster, Node
from trainyard.hardware.devices import DeviceSpec, NamedDevice
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.fabric import NON_BLOCKING, Fabric
from trainyard.hardware.node_changes import NodeChange, nodes_from
from trainyard.hardware.presets import device_named
from trainyard.hardware.prices import Prices
from trainyard.hardware.profile import MachineProfile
from trainyard.hardware.reservations import Reservation
from trainyard.hardware.text import cluster_from_text
from trainyard.hardware.topology import MAX_NODE_DEVICES, Link, NodeTopology, edges_from
from trainyard.reading import Section, parse_yaml, raised_as, read_text, shown
from trainyard.reading.arguments import require_type
from trainyard.reading.limits import MOST_DEVICES

__all__ = [
    "cluster_from_dict",
    "cluster_from_yaml",
    "cluster_of",
    "is_described_by_name",
    "num_named_devices",
    "parse_cluster",
]

_LOCAL = re.compile(r"local(?::(?P<count>\d{1,18}))?", re.ASCII)
_MAX_INCLUDED = 8
_MOST_PRIORITY = 2**32  # as in Slurm
_SETTINGS = ("partitions", "changes", "reservations", "qos", "prices")
_FIELDS = ("name", "devices", "topologies", "nodes", "fabric", "profile", *_SETTINGS)
_MOST_ROUTING = 4_000_000  # routes from every device of a node over all its edges: some seconds


def parse_cluster(text: str | Path) -> Cluster:
    """Read a cluster.

    Parameters
    ----------
    text
        - nodes x devices per node x device: ``16x8xA100-80G``; ``8xA100-80G`` is one node; of devices that have no
          preset, as in ``16x4`` or ``2x8xV100``, only the name is known;
        - with a network: ``4x8xV100-32G@100Gb`` (one NIC a node), ``4x8xA100-80G@4x200Gb`` (four);
        - with what a host has, and how many nodes are in a rack: ``16x4@24cpu,500GB,4/rack``;
        - several kinds of nodes: ``2x8xA100-80G+1x4xT4``;
        - ``local`` (a process for each core of this machine) or ``local:4``;
        - the path of a YAML file.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    HardwareError
        If it is none of these; a `ValueError`.
    """
    return _cluster_within(text, ())


def cluster_of(given: Cluster | str | Path) -> Cluster:
    """Return a cluster that is given itself, or as `parse_cluster` reads it.

    Raises
    ------
    WrongTypeError
        If it is neither a cluster nor text.
    HardwareError
        If the text describes no cluster.
    """
    advice = 'a Cluster, or text that describes one, such as "2x8xA100-80G" or "local"'
    require_type("cluster", given, (Cluster, str, Path), advice)
    return given if isinstance(given, Cluster) else parse_cluster(given)


def _cluster_within(text: str | Path, within: tuple[Path, ...]) -> Cluster:
    """Read a cluster that a file names, as `parse_cluster` does.

    Parameters
    ----------
    within
        That file and those that named it, each named by the one before; none of them can be named again.
    """
    given = str(text).strip()
    form = _form_of(given)
    if form.kind == "local":
        return _local(form.number)
    if form.kind == "file":
        path = Path(given)
        if not path.is_file():
            raise HardwareError(
                f"cluster file {shown(given)} does not exist; give the path of a YAML file, or a text form"
            )
        return _file(path, within)
    return cluster_from_text(given)


class _Form(NamedTuple):
    """Form in which a text names a cluster, and the number of ``local:4``."""

    kind: Literal["local", "file", "text"]
    number: int | None = None


def _form_of(text: str) -> _Form:
    if local := _LOCAL.fullmatch(text):
        return _Form("local", None if local["count"] is None else int(local["count"]))
    return _Form("file" if text.endswith((".yaml", ".yml")) else "text")


def _file(path: Path, within: tuple[Path, ...]) -> Cluster:
    """The cluster that a file describes, or names."""
    here = path.resolve()
    if here in within or len(within) == _MAX_INCLUDED:
        names = " -> ".join(each.name for each in (*within, here))
        what = "includes itself" if here in within else f"names more than {_MAX_INCLUDED} files in turn"
        raise HardwareError(
            f"cluster file {str(path)!r} {what} ({names}); under `cluster`, give a text form such as 16x8xA100-80G, or "
            "another file that describes one"
        )
    with raised_as(HardwareError):
        text = read_text(path)
    return cluster_from_yaml(text, path, (*within, here))


def is_described_by_name(cluster: Cluster) -> bool:
    """Whether a cluster's name, as a text form, means this cluster, and not one that was edited or put together.

    Nothing is measured for it: ``local:4`` means this machine as it was measured last.
    """
    from trainyard.hardware.local import remembered_cluster

    form = _form_of(cluster.name)
    if form.kind == "file":
        return False
    try:
        meant = (
            remembered_cluster(cluster.num_devices)
            if form.kind == "local"
            else cluster_from_text(cluster.name)
        )
    except HardwareError:
        return False
    return meant is not None and meant.fingerprint() == cluster.fingerprint()


def num_named_devices(name: str) -> int | None:
    """Count the devices of the cluster that a text form means; None where it does not say, or is no text form.

    Nothing is measured or read for it.
    """
    form = _form_of(name)
    if form.kind != "text":
        return form.number
    try:
        return cluster_from_text(name).num_devices
    except HardwareError:
        return None


def _local(count: int | None) -> Cluster:
    from trainyard.hardware.local import local_cluster
    from trainyard.hardware.measure import machine_identity

    return local_cluster(int(machine_identity()["num_cores"]) if count is None else count)


def cluster_from_dict(plain: Mapping[str, Any], within: tuple[Path, ...] = ()) -> Cluster:
    """Read the plain form of a cluster.

    Parameters
    ----------
    plain
        What `Cluster.to_dict` gives, or a mapping with the single key ``cluster``.
    within
        Files that are being read, each named by the one before; none of them can be named again.

    Returns
    -------
    Cluster
        The cluster.

    Raises
    ------
    HardwareError
        If it cannot be read.
    """
    with raised_as(HardwareError):
        given = Section.of(plain, "a cluster")
        if "cluster" in given:
            given.refuse_unknown(("cluster", *_SETTINGS))
            cluster = _cluster_within(given.text("cluster"), within)
            return replace(cluster, **_settings(given, cluster.num_nodes))
        given.refuse_unknown(_FIELDS)
        nodes = _nodes(given)
        fabric = _fabric(given.section("fabric")) if "fabric" in given else NON_BLOCKING
        profile = MachineProfile.from_dict(given.section("profile")) if "profile" in given else None
        return Cluster(given.text("name", "cluster"), nodes, fabric, profile, **_settings(given, len(nodes)))


def _settings(given: Section, num_nodes: int) -> dict[str, Any]:
    """Read the settings that both forms of a cluster may have; empty settings are left out."""
    read: dict[str, Callable[[Section, int], Any]] = {
        "partitions": _partitions,
        "changes": _changes,
        "reservations": _reservations,
        "qos": _qos,
        "prices": _prices,
    }
    settings = {name: of(given, num_nodes) for name, of in read.items() if name in given}
    return {name: setting for name, setting in settings.items() if setting}


def _partitions(given: Section, num_nodes: int) -> tuple[tuple[str, frozenset[int]], ...]:
    partitions = given.section("partitions")
    return tuple((str(name), nodes_from(partitions, name, num_nodes)) for name in partitions)


def _changes(given: Section, num_nodes: int) -> tuple[NodeChange, ...]:
    changes = [NodeChange.read(each, num_nodes) for each in given.sections("changes")]
    return tuple(sorted(changes, key=lambda change: change.at_s))


def _reservations(given: Section, num_nodes: int) -> tuple[Reservation, ...]:
    return tuple(Reservation.read(each, num_nodes) for each in given.sections("reservations"))


def _qos(given: Section, _: int) -> tuple[tuple[str, int], ...]:
    priorities = given.section("qos")
    return tuple((str(name), priorities.whole(name, -_MOST_PRIORITY, _MOST_PRIORITY)) for name in priorities)


def _prices(given: Section, _: int) -> Prices:
    prices = given.section("prices")
    return tuple((str(name), prices.number(name, 0.0)) for name in prices)


def _nodes(given: Section) -> tuple[Node, ...]:
    """The nodes; how many there are is known before they are made."""
    devices = [_device(entry, given, i) for i, entry in enumerate(given.items_of("devices"))]
    drawn = given.sections("topologies") if "topologies" in given else []
    topologies = [NodeTopology.from_dict(entry) for entry in drawn]
    if not devices:
        raise given.error("devices", "a list with at least one")
    work = sum((topology.num_devices + 1) * len(topology.edges) for topology in topologies)
    if work > _MOST_ROUTING:
        raise given.error(
            "topologies", f"fewer edges: devices times edges is {work:,}, at most {_MOST_ROUTING:,}"
        )
    nodes: list[Node] = []
    num_devices = 0
    for entry in given.sections("nodes"):
        entry.refuse_unknown(("topology", "devices", "count", "cpus", "memory_bytes", "rack"))
        places = Section(
            entry.source, entry.line, {str(i): x for i, x in enumerate(entry.items_of("devices"))}
        )
        places.what = "devices of a node"
        here = tuple(devices[places.whole(i, 0, len(devices) - 1)] for i in places)
        is_linked = len(here) <= MAX_NODE_DEVICES and any(isinstance(device, DeviceSpec) for device in here)
        topology = None
        if is_linked or "topology" in entry:
            if not topologies:
                raise given.error("topologies", "a list with at least one, for nodes that have links")
            topology = topologies[entry.whole("topology", 0, len(topologies) - 1)]
        count = entry.whole("count", 1, MOST_DEVICES, 1)
        num_devices += count * max(1, len(here))
        if num_devices > MOST_DEVICES:
            raise entry.error("count", f"a number with which a cluster has at most {MOST_DEVICES:,} devices")
        host = entry.number("cpus", 0.0, default=0.0), entry.number("memory_bytes", 0.0, default=0.0)
        nodes += [Node(topology, here, *host, entry.text("rack", ""))] * count
    return tuple(nodes)


def _device(entry: Any, given: Section, index: int) -> DeviceSpec | NamedDevice:
    """A device by the name of a preset, or by its fields, of which the name alone is enough."""
    if isinstance(entry, str):
        return device_named(entry)
    if not isinstance(entry, Mapping):
        raise given.error("devices", "a list of mappings, or of names of presets")
    fields = Section.of(entry, f"{given.place('devices')}[{index}]")
    return NamedDevice(fields.text("name")) if set(fields) == {"name"} else DeviceSpec.from_dict(fields)


def _fabric(given: Section) -> Fabric:
    given.refuse_unknown(("name", "links", "edges"))
    links = tuple(Link.from_dict(link) for link in given.sections("links"))
    return Fabric(given.text("name"), links, edges_from(given))


def cluster_from_yaml(text: str, source: str | Path = "a cluster", within: tuple[Path, ...] = ()) -> Cluster:
    """Read a cluster from YAML.

    Parameters
    ----------
    text
        What `Cluster.to_yaml` gives, or a shorter form: see the module.
    source
        What errors call it.
    within
        As in `cluster_from_dict`.

    Raises
    ------
    HardwareError
        If it cannot be read.
    """
    with raised_as(HardwareError):
        # Which device a number is of is said where its fields are read.
        plain = parse_yaml(text, source, finite=False)
        if not isinstance(plain, Section):
            raise HardwareError(
                f"{source} holds {shown(plain)}; allowed: a mapping with devices, topologies and nodes, or with "
                "`cluster: 16x8xA100-80G`"
            )
    try:
        return cluster_from_dict(plain, within)
    except HardwareError as error:
        if str(source) in str(error):
            raise
        raise HardwareError(f"{source}: {error}") from error
