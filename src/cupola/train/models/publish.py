"""The trainer's weights to a vLLM server, by its own weight-transfer protocol, and the proof that they arrived.

The protocol (vllm/entrypoints/rl/online/api_router.py, vllm/distributed/weight_transfer/nccl_engine.py of 0.32):

    once          /init_weight_transfer_engine      both sides form a group: the trainer is rank 0, the workers follow
    each version  /pause                            answers under way are finished, cached prefixes forgotten
                  /start_weight_update, /update_weights while rank 0 broadcasts each tensor, /finish_weight_update
                  /resume
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from cupola.core.config import Recipe, SamplerSection
from cupola.core.records import Prompt, Receipt, Sampler, SamplerError
from cupola.train.models.adapter import adapter_weights, save_adapter
from cupola.train.models.policy import Policy, whole_folder
from cupola.train.models.probe import Checksums, Probe, sha256
from cupola.train.models.sharding import named_weights

c10d: Any = dist  # torch exports its stores and backends without telling type checkers

#: Largest difference in nats on the probe, where both sides hold float32 and where one does not.
EXACT, ROUNDED = 1e-3, 0.5

#: Adapters that stay loaded: the newest, and the one before, which answers under way may still use.
KEPT_ADAPTERS = 2


class Routes(Protocol):
    """A vLLM server's routes; `get` may be repeated, `order` is asked once."""

    url: str

    def get(self, path: str) -> dict[str, Any]: ...

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def order(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


class Transfer(Protocol):
    """One way in which weights reach the server. `how` is the receipt's word for it."""

    how: str

    def send(self, label: str) -> None: ...


class WeightPublisher:
    """Sends the policy's weights, or its adapter, and compares both sides after each time."""

    def __init__(self, server: Routes, policy: Policy, recipe: Recipe, prompts: Sequence[Prompt]) -> None:
        settings = recipe.sampler
        self.server, self.policy, self.settings = server, policy, settings
        self.dtype = settings.dtype or recipe.model.dtype
        self.temperature = recipe.sampling.temperature
        exact = self.dtype == recipe.model.dtype == "float32"
        tolerance = settings.tolerance or (EXACT if exact else ROUNDED)
        self.probe = Probe(policy, prompts[: settings.probe], recipe.sampling.max_tokens, tolerance)
        self.checksums = Checksums()
        self.adapter = policy.adapter is not None
        self.transfer: Transfer | None = None

    def publish(self, version: int, label: str, sampler: Sampler) -> Receipt:
        """Raises SamplerError where the weights did not arrive, or not as they are."""
        started = time.perf_counter()
        if self.transfer is None:
            self._agree(self.server.get("/server_info?config_format=json"))
            self.transfer = self._open()
        self.transfer.send(label)
        sums = {name: sha256(tensor) for name, tensor in self._weights()} if self._summed else None
        if sums is not None and not self.adapter:
            theirs = self.server.ask("/weight_checker", {"action": "checksum"}).get("checksums")
            if not theirs:
                raise SamplerError(f"{self.server.url}: told no checksums; sampler.checksums = false goes without them")
            self.checksums.check(sums, theirs, f"{self.server.url}: {label}")
        compared = self.probe.compare(sampler, f"{self.server.url}: {label}")
        return Receipt(
            version,
            self.policy.parameters,
            time.perf_counter() - started,
            self.transfer.how,
            None if sums is None else _over(sums),
            compared.difference,
            compared.moved,
        )

    @property
    def _summed(self) -> bool:
        return self.settings.checksums or self.adapter  # an adapter is small

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """What is sent, under the names of a checkpoint and in the server's type; an adapter stays in its own."""
        if self.policy.adapter is not None:
            yield from adapter_weights(self.policy.adapter).items()
            return
        held = named_weights(self.policy.model)
        for name, _ in self.policy.model.named_parameters():
            yield name, held[name].to(getattr(torch, self.dtype))

    def _open(self) -> Transfer:
        settings = self.settings
        if self.adapter:
            return _Adapter(self.server, self.policy, _folder(settings))
        if settings.transfer == "files":
            return _Files(self.server, self._weights, _folder(settings))
        return _Broadcast(self.server, self._weights, settings, self.policy.device)

    def _agree(self, info: Mapping[str, Any]) -> None:
        """Refuse a server that was started to hold another type, or to tell other log-probabilities."""
        told = info.get("vllm_config", {}).get("model_config", {})
        held, mode = str(told.get("dtype")).removeprefix("torch."), told.get("logprobs_mode")
        if held != self.dtype:
            raise SamplerError(
                f"{self.server.url}: holds weights in {held} where {self.dtype} was asked for; start it with "
                f"--dtype {self.dtype}, or set sampler.dtype = {held!r}"
            )
        if self.temperature != 1 and mode != "processed_logprobs":
            raise SamplerError(
                f"{self.server.url}: tells log-probabilities of temperature 1 ({mode}) where sampling.temperature = "
                f"{self.temperature:g}; start it with --logprobs-mode processed_logprobs"
            )


class _Broadcast:
    """Rank 0 of a group with the server's workers: each tensor by one broadcast, in the order of the names."""

    def __init__(
        self,
        server: Routes,
        weights: Callable[[], Iterator[tuple[str, Tensor]]],
        settings: SamplerSection,
        device: torch.device,
    ) -> None:
        self.how = f"{settings.transfer} broadcast"
        self.server, self.weights, self.settings = server, weights, settings
        self.device = device if settings.transfer == "nccl" else torch.device("cpu")
        self.server.order("/shutdown_weight_transfer_engine")  # an earlier run's group
        self.size = int(self.server.get("/get_world_size").get("world_size", 1)) + 1
        self.timeout = timedelta(seconds=settings.timeout)
        self.group: Any = self._nccl() if settings.transfer == "nccl" else self._gloo()

    def send(self, label: str) -> None:
        named = list(self.weights())
        update = {
            "names": [name for name, _ in named],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            "shapes": [list(tensor.shape) for _, tensor in named],
        }

        def broadcast() -> None:
            for _, tensor in named:
                self.group.broadcast([tensor.to(self.device).contiguous()], c10d.BroadcastOptions()).wait()

        self.server.order("/pause?mode=wait")
        self.server.order("/start_weight_update")
        self._together(lambda: self.server.order("/update_weights", {"update_info": update}), broadcast)
        self.server.order("/finish_weight_update", {"weight_version": label})
        self.server.order("/resume")

    def _gloo(self) -> Any:
        store = c10d.TCPStore("0.0.0.0", 0, self.size, True, self.timeout, wait_for_workers=False)
        where = {"master_address": self.settings.address or "127.0.0.1", "master_port": store.port}
        return self._together(
            lambda: self._invite(where), lambda: c10d.ProcessGroupGloo(store, 0, self.size, self.timeout)
        )

    def _nccl(self) -> Any:
        """The group without vLLM's own code on this side: its workers take NCCL's unique id over HTTP.

        They reduce one number as soon as they have joined. So does this side: its first collective leaves the id in the
        store, under the number of the communicator.
        """
        if self.device.type != "cuda" or not dist.is_nccl_available():
            raise SamplerError(
                f"sampler.transfer = 'nccl' sends between GPUs, and the trainer is on {self.device.type}; use 'files'"
            )
        store, options = c10d.HashStore(), c10d.ProcessGroupNCCL.Options()
        options._timeout = self.timeout
        group = c10d.ProcessGroupNCCL(store, 0, self.size, options)
        one = torch.ones(1, device=self.device)
        self._together(
            lambda: self._invite({"nccl_unique_id_b64": base64.b64encode(store.get("0")).decode()}),
            lambda: group.allreduce([one]).wait(),
        )
        return group

    def _invite(self, where: Mapping[str, Any]) -> None:
        info = {**where, "rank_offset": 1, "world_size": self.size, "packed": False}
        self.server.order("/init_weight_transfer_engine", {"init_info": info})

    def _together(self, theirs: Callable[[], object], ours: Callable[[], Any]) -> Any:
        """What `ours` returns, run while the server does its half of the collective.

        Where the server refuses it says why, at once; this side's half then waits in vain, and nobody for it.
        """
        done: Future[Any] = Future()

        def work() -> None:
            try:
                done.set_result(ours())
            except RuntimeError as error:  # torch's own, whatever the backend
                done.set_exception(error)

        Thread(target=work, daemon=True).start()
        theirs()
        try:
            return done.result(self.settings.timeout)
        except (RuntimeError, TimeoutError) as error:
            first = next(iter(str(error).splitlines()), "it did not end in time")
            raise SamplerError(f"{self.server.url}: the {self.how} failed: {first}") from error


class _Files:
    """A safetensors file that the server reads back: slower, and it needs nothing but a folder."""

    how = "files"

    def __init__(self, server: Routes, weights: Callable[[], Iterator[tuple[str, Tensor]]], folder: Path) -> None:
        self.server, self.weights, self.folder = server, weights, folder

    def send(self, label: str) -> None:
        place = self.folder / label
        weights = {name: tensor.cpu().contiguous() for name, tensor in self.weights()}
        with whole_folder(place) as temporary:
            save_file(weights, temporary / "model.safetensors")
        self.server.order("/pause?mode=wait")
        self.server.order("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(place)}})
        self.server.order("/update_weight_version", {"new_version": label})
        self.server.order("/resume")
        shutil.rmtree(place)


class _Adapter:
    """The adapter alone, in peft's format, loaded under the version's label as its name."""

    how = "adapter by name"

    def __init__(self, server: Routes, policy: Policy, folder: Path) -> None:
        self.server, self.policy, self.folder = server, policy, folder
        self.loaded: list[str] = []

    def send(self, label: str) -> None:
        assert self.policy.adapter is not None
        place = self.folder / label
        with whole_folder(place) as temporary:
            save_adapter(self.policy.adapter, temporary)
        body = {"lora_name": label, "lora_path": str(place), "load_inplace": label in self.loaded}
        self.server.order("/v1/load_lora_adapter", body)
        self.server.order("/update_weight_version", {"new_version": label})
        self.loaded = [*(each for each in self.loaded if each != label), label]
        while len(self.loaded) > KEPT_ADAPTERS:
            old = self.loaded.pop(0)
            self.server.order("/v1/unload_lora_adapter", {"lora_name": old})
            shutil.rmtree(self.folder / old)


def _folder(settings: SamplerSection) -> Path:
    assert settings.folder is not None  # the recipe says so
    return Path(settings.folder).absolute()


def _over(sums: Mapping[str, str]) -> str:
    """SHA-256 over names and checksums, in the order of the names."""
    return hashlib.sha256("".join(f"{name} {sums[name]}\n" for name in sorted(sums)).encode()).hexdigest()
