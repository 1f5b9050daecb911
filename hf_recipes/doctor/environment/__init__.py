"""What a run would stand on: this machine, its packages and devices, looked at before anything starts."""
