"""A weight-transfer engine for vLLM itself: the protocol of its `nccl` engine over gloo, for a server on a CPU.

It runs inside vLLM's worker, as a plugin (entry point `vllm.general_plugins`, `gloo = vllm_gloo:register`). Start it
with --weight-transfer-config '{"backend": "gloo"}'.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class Group(WeightTransferInitInfo):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    packed: bool = False


@dataclass
class Tensors(WeightTransferUpdateInfo):
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooEngine(WeightTransferEngine[Group, Tensors]):
    init_info_cls = Group
    update_info_cls = Tensors

    def init_transfer_engine(self, init_info: Group) -> None:
        store = dist.TCPStore(init_info.master_address, init_info.master_port, init_info.world_size, False)
        rank = init_info.rank_offset + self.parallel_config.rank
        self.group = dist.ProcessGroupGloo(store, rank, init_info.world_size, timedelta(seconds=60))

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Tensors) -> None:
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast([weight], dist.BroadcastOptions()).wait()
            self.model.load_weights([(name, weight)])

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self.group = None


def register() -> None:
    WeightTransferEngineFactory.register_engine("gloo", "vllm_gloo", "GlooEngine")
