"""What is said of a bad step."""

from __future__ import annotations

from hf_recipes.callbacks.bad_step_sentences import lost_steps, name_some, what_happened, where_it_is
from hf_recipes.callbacks.reading import BadMicroBatch, Reading


def test_of_many_names_the_first_are_told():
    assert name_some(["a"]) == "1 tensor: a"
    assert name_some(["a", "b"]) == "2 tensors: a, b"
    assert name_some(list("abcde")) == "5 tensors, the first: a, b, c"


def test_place_and_gradient_are_told_as_far_as_they_are_known():
    here = BadMicroBatch("loss", 2, 1)
    start = "Step 7: the loss of micro-batch 2 of 4 on rank 1 is not finite"
    assert what_happened(Reading(7, 1.0, here), here, 4) == f"{start}; the logged loss may hide it."
    assert what_happened(Reading(7, None, here), here, 4) == f"{start}; the logged loss may hide it."
    both = what_happened(Reading(7, float("nan"), here), here, 4)
    assert both == f"{start}, and so is the gradient; the logged loss may hide it."
    nowhere = BadMicroBatch("gradient", None, None)
    assert what_happened(Reading(7, float("nan"), nowhere), nowhere, 4).startswith(
        "Step 7: the gradient (on a rank unknown: it was averaged before) is not finite;"
    )


def test_files_problems_and_what_is_left_out_are_told_together():
    assert where_it_is([], [], 0, 20) == ""
    assert where_it_is(["a", "b", "c"], ["rank 1: OSError: full"], 2, 3) == (
        "The batch is in a and 2 more there. The batch could not be written (rank 1: OSError: full). "
        "Not written: 2 more, for a run writes 3 at most."
    )


def test_one_step_is_one():
    assert lost_steps(1) == "1 step of training is lost"
    assert lost_steps(0) == "0 steps of training are lost"
