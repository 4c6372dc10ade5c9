"""FSDP2: weights, gradients and optimiser states shared out over the ranks, and weights whole while a block needs them.

Within `gathered` a forward pass speaks to no other rank, so ranks may forward what they like; a backward pass sums each
layer's gradient over the ranks and keeps one rank's rows of it, so every rank has to run equally many of those.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import Module
from torch.optim import Optimizer


def shard(module: Module, mesh: DeviceMesh) -> None:
    """Leave this rank its rows of every parameter; the gradient is the plain sum of the ranks' gradients.

    Each layer that its architecture names as one is communicated as one, and the rest together.
    """
    # FSDP warns that a module returns a view, which must not be written to in place; nothing here writes in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    for part in [*layers(module), module]:
        unit = fully_shard(part, mesh=mesh, reshard_after_forward=False)
        # The default is the mean over ranks; gloo has no other way to a sum than these two together.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_reshard_after_backward(False)


def layers(module: Module) -> list[Module]:
    """What the architecture names as its layers, before they are sharded."""
    names = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    return [part for part in module.modules() if type(part).__name__ in names]


@contextmanager
def gathered(*modules: Module | None) -> Iterator[None]:
    """Whole weights on every rank until the block ends; all ranks enter it together. Without shards it does nothing."""
    units = [part for module in modules if module is not None for part in module.modules()]
    sharded = [unit for unit in units if isinstance(unit, FSDPModule)]
    for unit in sharded:
        unit.unshard()
    try:
        yield
    finally:
        for unit in sharded:
            unit.reshard()


def named_weights(module: Module) -> dict[str, Tensor]:
    """What `state_dict` says; of a sharded module too, within `gathered`: there it would drop the whole weights.

    On a CPU those are copies: a storage that numpy has seen can never be freed again, and `gathered` frees its own.
    """
    if not any(isinstance(part, FSDPModule) for part in module.modules()):
        return module.state_dict()
    passing = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in module.named_buffers(remove_duplicate=False) if name not in passing}
    held = {p: p.detach().clone() if p.device.type == "cpu" else p.detach() for p in module.parameters()}
    return {**{name: held[p] for name, p in module.named_parameters(remove_duplicate=False)}, **buffers}


def whole(state: Any, keep: bool) -> Any:
    """A state dict with whole tensors in place of shards; all ranks ask together, and those that do not keep it pass.

    The whole tensors are on the CPU.
    """
    if isinstance(state, Mapping):
        return {key: whole(value, keep) for key, value in state.items()}
    if isinstance(state, list):
        return [whole(value, keep) for value in state]
    if isinstance(state, DTensor):
        full = state.full_tensor()
        return full.cpu() if keep else None
    return state


def scattered(state: Mapping[str, Any], holder: Module | Optimizer) -> dict[str, Any]:
    """A whole state dict as `holder` can load it: as it is, or this rank's rows of each tensor."""
    return _weights(state, holder) if isinstance(holder, Module) else _optimizer_state(state, holder)


def _weights(weights: Mapping[str, Tensor], module: Module) -> dict[str, Tensor]:
    meshes = (parameter.device_mesh for parameter in module.parameters() if isinstance(parameter, DTensor))
    mesh = next(meshes, None)
    if mesh is None:
        return dict(weights)
    buffers = {name for name, _ in module.named_buffers()}
    return {
        name: weight if name in buffers else distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)
        for name, weight in weights.items()
    }


def _optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Every state of an optimiser that takes shards is a number or has its parameter's shape, and is cut as that is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value: Any, parameter: Tensor) -> Any:
        if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.dim() == 0:
            return value
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)

    held = {
        index: {key: cut(value, parameters[index]) for key, value in values.items()}
        for index, values in state["state"].items()
    }
    return {**state, "state": held}
