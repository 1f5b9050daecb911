"""Job files for schedulers: one training job in, the text of its files out."""
