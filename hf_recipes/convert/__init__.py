"""Another tool's training configuration, read for its meaning and written as a recipe. Imports neither torch nor
transformers, nor any of those tools."""

# As --from names them; what is known of each is in `tools`, which takes long to import.
TOOL_NAMES = ("axolotl", "llamafactory", "swift", "trl")
