"""How torch.distributed.checkpoint learns what a rank's parts of tensors are, for writing and for reading."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from trainyard.job.run.boxes import Box
from trainyard.job.run.snapshot import Part


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


class PartWriter(SavePlanner):
    """Writes the boxes of every part; of boxes that several ranks have, one writes."""

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self.parts: dict[str, Part] = state_dict

    def create_local_plan(self) -> SavePlan:
        items = []
        self.tensors: dict[MetadataIndex, torch.Tensor] = {}
        for key, part in self.parts.items():
            for box in part.boxes:
                index = MetadataIndex(key, box.offsets)
                data = TensorWriteData(
                    _chunk(box), TensorProperties.create_from_tensor(part.tensor), torch.Size(part.shape)
                )
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
                self.tensors[index] = box.of(part.tensor)
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(dedup_save_plans(all_plans))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self.tensors[write_item.index].contiguous()


class PartReader(LoadPlanner):
    """Reads the boxes of every part from whatever boxes were written."""

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        self.parts: dict[str, Part] = state_dict
        self.known: dict[str, TensorStorageMetadata] = metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        self.tensors: dict[MetadataIndex, torch.Tensor] = {}
        for key, part in self.parts.items():
            items += create_read_items_for_chunk_list(key, self.known[key], [_chunk(b) for b in part.boxes])
            self.tensors |= {MetadataIndex(key, b.offsets): b.of(part.tensor) for b in part.boxes}
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise TypeError(f"{read_item.storage_index.fqn} is not a tensor")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        tensor = self.tensors[read_item.dest_index]
        for dim, (start, size) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            tensor = tensor.narrow(dim, start, size)
        return tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing to do: what is read goes right into the state."""
