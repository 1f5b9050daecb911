"""Many short runs of one recipe with other values of some keys, side by side; and the learning-rate range test."""
