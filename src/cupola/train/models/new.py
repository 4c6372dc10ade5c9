"""A new tiny Llama-shaped policy over single characters, to be trained by a supervised cold start."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cupola.train.models.policy import Policy, make_policy

PAD, END = "<pad>", "<end>"


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character of `alphabet`, and one each for padding and the end."""
    vocabulary = {token: index for index, token in enumerate([PAD, END, *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


def llama_shape(
    *, hidden_size: int, layers: int, heads: int, intermediate_size: int, context: int, initializer_range: float
) -> LlamaConfig:
    """The configuration of a small Llama with tied embeddings; `context` is its longest sequence in tokens."""
    return LlamaConfig(
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
    )


def new_policy(alphabet: str, config: LlamaConfig) -> Policy:
    """A policy with random weights for an alphabet; `config` gives the shape, its token ids are set here."""
    tokenizer = character_tokenizer(alphabet)
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.eos_token_id, config.bos_token_id = 0, 1, None
    return make_policy("new", LlamaForCausalLM(config), tokenizer)
