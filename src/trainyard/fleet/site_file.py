"""Clusters of the fleet from files: nodes as they are written on the command line, and the partitions that they are in.

::

    cluster: 8x8xV100@96cpu,1440GiB+4x8xA100@128cpu,2000GiB
    partitions:
      gpu: 0-7          # nodes are numbered from 0, in the order of the line above
      a100: 8-11
      debug: 0,8        # a node may be in several
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from trainyard.fleet.site import FleetError, Site
from trainyard.reading import Section, parse_yaml, raised_as, read_text

__all__ = ["site_of"]

_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_KEYS = ("cluster", "partitions")


def site_of(text: str) -> Site:
    """A cluster: as `Site.parse` reads it, or of a file that ends in ``.yaml`` or ``.yml``.

    Raises
    ------
    FleetError
        If it cannot be read, or a partition has a node that there is not.
    """
    if not text.endswith((".yaml", ".yml")):
        return Site.parse(text)
    path = Path(text)
    with raised_as(FleetError):
        given = parse_yaml(read_text(path), path)
        if not isinstance(given, Section):
            raise FleetError(f"{path}, line 1: a cluster is a mapping of {' and '.join(_KEYS)}")
        given.refuse_unknown(_KEYS)
        site = Site.parse(given.text("cluster"))
        partitions = given.section("partitions") if "partitions" in given else Section(path)
        named = tuple((str(name), _nodes(partitions, name, len(site.hosts))) for name in partitions)
    return replace(site, name=f"{path.name}: {site.name}", partitions=named)


def _nodes(partitions: Section, name: str, num_nodes: int) -> frozenset[int]:
    """The nodes of a partition, ``0-7,9`` or one number."""
    found: set[int] = set()
    for part in str(partitions[name]).split(","):
        match = _NODES.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < num_nodes:
            raise partitions.error(name, f"nodes such as 0-7,9, from 0 to {num_nodes - 1}")
        found.update(range(first, last + 1))
    return frozenset(found)
