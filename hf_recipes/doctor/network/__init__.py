"""The network between the ranks of a job: measured, compared, and weighed against what a strategy sends in a step."""
