"""Bodies of requests that load and unload LoRA adapters, as vLLM has them; folders below one only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.reading import shown
from trainyard.serve.run.lora_adapter import ADAPTER_FILES
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.request_body import Name, RequestBody

__all__ = ["LoadAdapterRequest", "UnloadAdapterRequest", "adapter_folder", "require_adapter_root"]

_NewName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\w.:@/+-]+$")]


class LoadAdapterRequest(RequestBody):
    """POST /v1/load_lora_adapter."""

    lora_name: _NewName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    base_model_name: Name = ""


class UnloadAdapterRequest(RequestBody):
    """POST /v1/unload_lora_adapter."""

    lora_name: Name


def require_adapter_root(root: Path | None) -> Path:
    """The folder below which clients may name adapters.

    Raises
    ------
    ApiError
        If there is none, so that they may neither load nor unload any.
    """
    if root is None:
        told = "clients may not load and unload adapters here; start the server with --lora-root FOLDER"
        raise ApiError(403, told)
    return root.resolve()


def adapter_folder(given: str, root: Path | None) -> Path:
    """The folder that a client names. It and the files of it that are read lie below the root, wherever links lead.

    Parameters
    ----------
    given : a path, from the root on or absolute.
    root : folder below which clients may name folders; None for none.

    Raises
    ------
    ApiError
        If it may not be named.
    """
    root = require_adapter_root(root)
    found = root / given
    if not _is_below(found, root):
        told = f"lora_path is {shown(given)}; allowed are folders below the --lora-root of this server"
        raise ApiError(400, told, param="lora_path")
    for name in ADAPTER_FILES:
        if not _is_below(found / name, root):
            told = f"{name} of lora_path {shown(given)} is a link out of the --lora-root of this server; copy the file"
            raise ApiError(400, told, param="lora_path")
    return found.resolve()


def _is_below(path: Path, root: Path) -> bool:
    try:
        return root in path.resolve().parents
    except (OSError, ValueError, RuntimeError):  # it has a zero byte, is too long, or leads in a circle
        return False
