"""Which parallelism: the cheapest that fits, and why not the others."""
