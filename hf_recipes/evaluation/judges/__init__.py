"""Judges of single answers: strings and numbers in, verdicts out; no model."""
