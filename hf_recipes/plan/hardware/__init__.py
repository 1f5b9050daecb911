"""What accelerators can do, as dated and sourced data, and what this machine can."""
