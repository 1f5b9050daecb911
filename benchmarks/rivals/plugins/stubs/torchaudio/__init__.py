"""LLaMA-Factory imports torchaudio even for text; its wheels may not load beside a CPU build of torch. Nothing of it is
used here."""

__version__ = "0"
