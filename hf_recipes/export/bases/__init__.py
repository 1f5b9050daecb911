"""The base model of a merge: found, told apart, read by its headers."""
