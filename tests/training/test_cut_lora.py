from __future__ import annotations

from pathlib import Path

import pytest
from two_ranks import run_two_ranks


@pytest.mark.trials
def test_lora_over_cut_matrices_gets_the_gradients_of_the_whole_model(tmp_path, tiny_model_dir):
    for seen in run_two_ranks(Path(__file__).with_name("cut_lora_ranks.py"), tmp_path, tiny_model_dir):
        assert seen["losses"][0] == pytest.approx(seen["losses"][1], abs=1e-5)
        assert seen["largest"] > 1e-3
        assert len(seen["differences"]) == 2 * 2 * 3  # layers × A and B × targets
        assert max(seen["differences"].values()) < 1e-6
        assert seen["cut"] > 0
