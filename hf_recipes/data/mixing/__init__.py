"""Shares of general data, exact, for datasets and for streams."""
