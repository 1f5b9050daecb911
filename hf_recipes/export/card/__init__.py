"""The model card (README.md) of an exported form, from what the run directory holds."""

from hf_recipes.export.card.write import write_model_card

__all__ = ["write_model_card"]
