"""All of the data's way: read → format → tokenise and mask → split → mix, with an account of every row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.log import logger
from hf_recipes.data.check import check_bad_rows, open_source
from hf_recipes.data.formats import Example, to_example
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.lengths import NOTHING_LEARNED, OVERLONG, fit_length, too_long
from hf_recipes.data.masks import Encoded, Encoder
from hf_recipes.data.mixture import Mixture, check_share, choose_mixture, shuffled, tell_short
from hf_recipes.data.sources import SourceSpec, as_specs, find_files, unique_labels
from hf_recipes.data.split import Splitter, duplicate_key

if TYPE_CHECKING:
    from datasets import Dataset

CHUNK_ROWS = 256
