"""Looks at what a run stands on, and says what is wrong with it: the network between its ranks."""
