"""Who draws the completions: the trainer's own process, or a vLLM server that its weights are sent to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cupola.core.config.section import Count, Misfit, Positive, PositiveInt, Section, Text, changed


class SamplerSection(Section):
    kind: Literal["in_process", "vllm"] = Field(
        "in_process", description="The trainer's own process, or a vLLM server of 0.32 or later."
    )
    url: Text | None = Field(None, description="The vLLM server, such as http://localhost:8000.")
    transfer: Literal["nccl", "gloo", "files"] = Field(
        "nccl",
        description="How new weights reach the server: a broadcast between GPUs, the same between CPUs (for a server "
        "with an engine of that name), or files in `folder`.",
    )
    address: Text | None = Field(
        None, description="Where the server finds the trainer, for `gloo` (absent: 127.0.0.1)."
    )
    folder: Text | None = Field(None, description="A folder that both see under this name, for `files`.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Type of the server's weights; one that holds another is refused (absent: `model.dtype`)."
    )
    timeout: Positive = Field(300, description="Seconds to wait for one answer, or for the weights to pass.")
    retries: Count = Field(3, description="Further attempts when a question is not answered, each after a longer wait.")
    checksums: bool = Field(
        True, description="Compare SHA-256 of the weights on both sides after each publication, about 1 s per GB."
    )
    probe: PositiveInt = Field(4, description="Questions whose log-probabilities both sides compute and compare.")
    tolerance: Positive | None = Field(
        None,
        description="Largest difference in nats allowed there (absent: 0.001 where both hold float32, else 0.5).",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SamplerSection:
        if self.kind == "in_process":
            idle = changed(self, {})
            if idle:
                raise Misfit(idle[0], "is of no use to kind 'in_process'; set kind to 'vllm', or leave this out")
            return self
        if self.url is None:
            raise Misfit("url", "is missing: kind 'vllm' needs the server's address, such as 'http://localhost:8000'")
        if not self.url.startswith(("http://", "https://")):
            raise Misfit("url", f"should begin with http:// or https://, got {self.url!r:.80}")
        if self.transfer == "files" and self.folder is None:
            raise Misfit("folder", "is missing: transfer 'files' needs a folder that trainer and server both see")
        for key, kind in (("folder", "files"), ("address", "gloo")):
            if getattr(self, key) is not None and self.transfer != kind:
                raise Misfit(key, f"is of no use to transfer {self.transfer!r}; leave it out, or use {kind!r}")
        return self
