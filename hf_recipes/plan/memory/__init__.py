"""How much memory a training step takes on one rank, by part and phase."""
