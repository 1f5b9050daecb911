"""Before anything is loaded: will it fit, how long does it take, what does it cost, which parallelism."""
