"""Another tool's training configuration, read for its meaning and written as a recipe. Imports neither torch nor
transformers, nor any of those tools."""
