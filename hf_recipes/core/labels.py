"""The label of tokens that are read but not predicted, as PyTorch's cross entropy has it."""

IGNORED_LABEL = -100
