"""What this machine and installation can do."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from typing import Any

from cupola.workflows.manifest import versions

#: Optional parts: what they are for, and the module that shows they are there.
OPTIONAL = {
    "train": ("torch", "cupola train, resume, sft, eval: pip install -e '.[train]' in the clone"),
    "gguf": ("gguf", "preparing SmolLM2: `make smollm2` installs it"),
}


def examine() -> dict[str, Any]:
    """Versions, cores, threads and wait policy, accelerator, optional parts, and the embedded policy's digest."""
    return {
        "python": f"{platform.python_version()} at {sys.prefix}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "memory_gb": _memory_gb(),
        "versions": versions(),
        "optional": {name: _optional(*entry) for name, entry in OPTIONAL.items()},
        "chromium": shutil.which("chromium") or shutil.which("google-chrome"),
        "threads": _threads(),
        **_torch(),
    }


def _optional(module: str, purpose: str) -> str:
    return "installed" if importlib.util.find_spec(module) else f"missing; needed for {purpose}"


def _memory_gb() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _threads() -> dict[str, str]:
    return {
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "advice": "cupola sets OMP_WAIT_POLICY=PASSIVE unless you set it: threads that spin while they wait cost up to "
        "ten times where another process wants the core. A policy of up to 2 million parameters runs on 1 thread, a "
        "larger one on all cores; run.threads decides otherwise.",
    }


def _torch() -> dict[str, Any]:
    if not importlib.util.find_spec("torch"):
        return {"accelerator": None, "embedded": "not checked: torch is missing"}
    import torch

    from cupola.core.records import ModelError
    from cupola.train.models import load_policy

    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    try:
        policy = load_policy("embedded")
    except ModelError as error:
        return {"accelerator": accelerator, "embedded": str(error)}
    return {"accelerator": accelerator, "embedded": f"{policy.parameters:,} parameters, digest as shipped"}
