"""The judges of `hf-recipes evaluate` as metrics of Hugging Face's `evaluate`, for anybody's own script; offline.

    from hf_recipes.metrics import JsonFormat
    JsonFormat().compute(predictions=['{"a": 1}', "Sure!"])   # {"json_strict": 0.5, "json_lenient": 0.5, …}

Each is a subclass of `evaluate.Metric`; `evaluate` comes with ``pip install 'hf-recipes[evaluate]'``.
"""

from hf_recipes.metrics.formats import CodeFormat, JsonFormat, RegexFormat, SchemaFormat, XmlFormat
from hf_recipes.metrics.instructions import InstructionFollowing
from hf_recipes.metrics.json_fields import JsonFields
from hf_recipes.metrics.text import TextScores

__all__ = [
    "CodeFormat",
    "InstructionFollowing",
    "JsonFields",
    "JsonFormat",
    "RegexFormat",
    "SchemaFormat",
    "TextScores",
    "XmlFormat",
]
