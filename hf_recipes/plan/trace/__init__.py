"""One training step on fake tensors, with every allocation followed: the second way to a memory figure."""
