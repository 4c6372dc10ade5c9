"""A small server that answers as vLLM 0.32 does, with a real model, a real socket and a real gloo group.

    python fake_vllm.py MODEL [--dtype float32] [--lora]        prints its port, then serves until it is ended

What is like vLLM's: routes, bodies, status codes and their errors, the states of a weight update, one version label for
all weights that starts as `default`, fused q/k/v and gate/up weights under a worker's prefix in the checksums, adapters
by name. What is not: one request at a time, no cache. POST /misbehave {"how": NAME, "times": N} makes it misbehave,
/restart ends that and forgets everything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

PREFIX = "dp0:pp0:pcp0:tp0:"
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

CONTROL = (
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
    "weight_checker",
    "collective_rpc",
)

#: How long a hanging answer hangs.
LONG = 30.0


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Engine:
    """The model, and the state of the transfer."""

    def __init__(self, path: str, dtype: str, lora: bool) -> None:
        self.path, self.dtype, self.lora = path, dtype, lora
        self.lock = threading.Lock()
        self.how, self.times = "", 0
        self.start()

    def start(self) -> None:
        """As after a start: the weights on disk, no adapter, no group."""
        self.base = AutoModelForCausalLM.from_pretrained(self.path, dtype=getattr(torch, self.dtype)).eval()
        self.model: Any = self.base
        self.adapters: set[str] = set()
        self.version, self.updating, self.group = "default", False, None

    def misbehaves(self, how: str) -> bool:
        """Whether it is to misbehave so now; counts down."""
        if self.how != how or self.times == 0:
            return False
        self.times -= 1
        return True

    # Weight transfer

    def init_weight_transfer_engine(self, body: dict[str, Any]) -> dict[str, Any]:
        info = body["init_info"]
        store = dist.TCPStore(info["master_address"], info["master_port"], info["world_size"], False)
        self.group = dist.ProcessGroupGloo(store, info["rank_offset"], info["world_size"], timedelta(seconds=20))
        return {"message": "Weight transfer initialized"}

    def shutdown_weight_transfer_engine(self, body: dict[str, Any]) -> dict[str, Any]:
        self.group = None
        return {"message": "Weight transfer shut down"}

    def start_weight_update(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.updating:
            raise Refusal(500, "start_weight_update called while a weight update is already active.")
        self.updating = True
        return {"message": "Weight update started"}

    def update_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        info = body["update_info"]
        if not self.updating:
            raise Refusal(500, "start_weight_update must be called before update_weights.")
        if self.group is None:
            raise Refusal(500, "weight transfer not initialized. Call init_transfer_engine() first.")
        named = {}
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            named[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast([named[name]], dist.BroadcastOptions()).wait()
        self.load(named)
        return {"message": "Weights updated"}

    def finish_weight_update(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self.updating:
            raise Refusal(500, "finish_weight_update called without a matching start_weight_update.")
        self.updating = False
        self.version = body.get("weight_version") or self.version
        return {"message": "Weight update finished"}

    def load(self, named: dict[str, Tensor]) -> None:
        if self.misbehaves("stale"):
            return
        if self.misbehaves("partly stale"):
            named = dict(list(named.items())[:3])
        if self.misbehaves("half precision"):
            named = {name: tensor.half() for name, tensor in named.items()}
        own = dict(self.base.named_parameters())
        with torch.no_grad():
            for name, tensor in named.items():
                own[name].copy_(tensor)

    def collective_rpc(self, body: dict[str, Any]) -> dict[str, Any]:
        self.load(load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors"))
        return {"results": [None]}

    def update_weight_version(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version = body["new_version"]
        return {"success": True, "new_version": self.version}

    def weight_checker(self, body: dict[str, Any]) -> dict[str, Any]:
        weights = dict(self.base.named_parameters())
        for name in [name for name in weights if any(part in name for part in ("q_proj", "gate_proj"))]:
            for fused, parts in FUSED.items():
                if parts[0] in name:
                    pieces = [weights.pop(name.replace(parts[0], part)) for part in parts]
                    weights[name.replace(parts[0], fused)] = torch.cat(pieces)
        digests = {name: hashlib.sha256(each.detach().numpy().tobytes()).hexdigest() for name, each in weights.items()}
        return {"checksums": {PREFIX + name: digest for name, digest in digests.items()}}

    # Adapters

    def load_lora_adapter(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body["lora_name"]
        if name in self.adapters and not body.get("load_inplace"):
            raise Refusal(400, f"The lora adapter '{name}' has already been loaded.")
        if self.model is self.base:
            self.model = PeftModel.from_pretrained(self.base, body["lora_path"], adapter_name=name).eval()
        elif name not in self.adapters:
            self.model.load_adapter(body["lora_path"], adapter_name=name)
        self.adapters.add(name)
        return {}

    def unload_lora_adapter(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["lora_name"] not in self.adapters:
            raise Refusal(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
        self.adapters.remove(body["lora_name"])
        self.model.delete_adapter(body["lora_name"])
        return {}

    # Tokens

    @torch.no_grad()
    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        asked, prompt, name = body["sampling_params"], body["token_ids"], body.get("model")
        if name is not None and name not in self.adapters:
            raise Refusal(404, f"The model `{name}` does not exist.")
        if self.misbehaves("restart"):
            self.start()
        if name is not None:
            self.model.set_adapter(name)
        forward = self.base if name is None else self.model
        if name is not None and self.misbehaves("adapter not applied"):
            with self.model.disable_adapter():
                return self._answer(self.model, prompt, asked)
        return self._answer(forward, prompt, asked)

    def _answer(self, model: Any, prompt: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        choices = [self._choice(model, prompt, asked, index) for index in range(asked.get("n", 1))]
        answer: dict[str, Any] = {"request_id": "fake", "model": self.path, "choices": choices, "prompt_logprobs": None}
        if asked.get("prompt_logprobs") is not None:
            logp = model(input_ids=torch.tensor([prompt])).logits[0].float().log_softmax(-1)
            given = [{str(token): {"logprob": float(logp[i, token]), "rank": 1}} for i, token in enumerate(prompt[1:])]
            answer["prompt_logprobs"] = [None, *given]
        return self._spoilt(answer)

    def _choice(self, model: Any, prompt: list[int], asked: dict[str, Any], index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(asked.get("seed", 0) + index)
        temperature, ids, told, finish = asked.get("temperature", 1.0), list(prompt), [], "length"
        for _ in range(asked["max_tokens"]):
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
            logp = (logits / (temperature or 1.0)).log_softmax(-1)
            token = int(logp.argmax()) if temperature == 0 else int(logp.exp().multinomial(1, generator=generator))
            ids.append(token)
            told.append({"token_id": token, "logprob": float(logp[token]), "rank": 1, "top_logprobs": []})
            if token in asked.get("stop_token_ids", ()):
                finish = "stop"
                break
        new = ids[len(prompt) :]
        return {
            "index": index,
            "logprobs": {"content": told} if asked.get("logprobs") is not None else None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": new,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(new)}],
        }

    def _spoilt(self, answer: dict[str, Any]) -> dict[str, Any]:
        first = answer["choices"][0]
        if self.misbehaves("no log-probabilities"):
            first["logprobs"] = None
        if self.misbehaves("a log-probability missing") and first["logprobs"]:
            first["logprobs"]["content"].pop()
        if self.misbehaves("too few completions"):
            answer["choices"].pop()
        if self.misbehaves("cut short"):
            first.update(finish_reason="length", token_ids=first["token_ids"][:1])
            first["logprobs"]["content"] = first["logprobs"]["content"][:1]
        if self.misbehaves("aborted"):
            first["finish_reason"] = "abort"
        if self.misbehaves("no version"):
            first["weight_versions"] = None
        if self.misbehaves("other version"):
            first["weight_versions"][0]["version"] = "somebody-7"
        return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as uvicorn's do
    engine: Engine

    def do_GET(self) -> None:
        engine, path = self.engine, urlsplit(self.path).path
        model = {"dtype": f"torch.{engine.dtype}", "logprobs_mode": "processed_logprobs"}
        if engine.how == "raw log-probabilities":
            model["logprobs_mode"] = "raw_logprobs"
        answers: dict[str, Any] = {
            "/health": {},
            "/server_info": {"vllm_config": {"model_config": model}},
            "/get_world_size": {"world_size": 1},
            "/weight_info": {"weight_version": engine.version},
        }
        self.reply(200 if path in answers else 404, answers.get(path, {"detail": "Not Found"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        path, engine = urlsplit(self.path).path, self.engine
        if path == "/restart":
            engine.how, engine.times = "", 0
            engine.start()
            return self.reply(200, {})
        if path == "/misbehave":
            engine.how, engine.times = body["how"], body["times"]
            return self.reply(200, {})
        if engine.misbehaves(f"hang at {path}"):
            time.sleep(LONG)
        if engine.misbehaves(f"500 at {path}"):
            return self.reply(500, {"error": {"message": "EngineCore encountered an issue.", "code": 500}})
        routes: dict[str, Any] = {
            "/inference/v1/generate": engine.generate,
            "/pause": lambda body: {"status": "paused"},
            "/resume": lambda body: {"status": "resumed"},
        }
        routes |= {f"/{name}": getattr(engine, name) for name in CONTROL}
        if engine.lora:
            routes |= {f"/v1/{name}": getattr(engine, name) for name in ("load_lora_adapter", "unload_lora_adapter")}
        if path not in routes:
            return self.reply(404, {"detail": "Not Found"})
        try:
            with engine.lock:
                answer = routes[path](body)
        except Refusal as refusal:
            return self.reply(refusal.status, {"error": {"message": refusal.message, "code": refusal.status}})
        self.reply(200, answer)

    def reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        tokens = self.path == "/inference/v1/generate"
        if tokens and self.engine.misbehaves("garbage"):
            data = b"<html>502 Bad Gateway</html>"
        sent = data[: len(data) // 2] if tokens and self.engine.misbehaves("half an answer") else data
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(sent)
        if sent is not data:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None: ...


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lora", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    Handler.engine = Engine(given.model, given.dtype, given.lora)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
