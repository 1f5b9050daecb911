"""The version of hf_recipes, kept here alone; the build reads it too."""

__version__ = "0.1.0"
