"""The overfit test: can this set-up learn a handful of its own rows by heart; if not, why not."""
