"""cupola: group-relative RL post-training of language models that cannot fail silently."""

__version__ = "0.1.0"
