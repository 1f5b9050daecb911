"""Which of the encoded samples are used: corpus rules, split, leakage."""
