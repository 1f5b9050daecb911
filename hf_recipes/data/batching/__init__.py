"""From samples to batches: padding, length groups, packing."""
