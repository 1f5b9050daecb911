from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors gain nothing from threads, and threads that wait for each other on a busy machine cost minutes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
