"""Public names of a package, each imported when it is first used, so that the package itself is imported at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, home: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package whose names lie in modules.

    Parameters
    ----------
    package : its name, for the error of an unknown name.
    home : the module of each public name; of a subpackage, its own name.
    namespace : ``globals()`` of the package, where a name stays once it is imported.
    """

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(home)}, and its submodules")
        module = importlib.import_module(home[name])
        found = module if home[name] == f"{package}.{name}" else getattr(module, name)
        namespace[name] = found
        return found

    return get, lambda: sorted({*namespace, *home})
