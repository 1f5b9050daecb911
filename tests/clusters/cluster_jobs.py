"""Jobs for the tests of this folder; import as `from cluster_jobs import a_job`."""

from __future__ import annotations

from hf_recipes.clusters.job import Job


def a_job(**more):
    """Two nodes of eight H100, or as `more` says."""
    return Job(
        **{
            "name": "orders",
            "output_dir": "runs/orders",
            "nodes": 2,
            "devices": 8,
            "ranks": 8,
            "accelerator": "h100",
            "cores": 64,
            **more,
        }
    )
