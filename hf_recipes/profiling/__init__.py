"""Where a training step's time and memory go, measured on the run itself."""
