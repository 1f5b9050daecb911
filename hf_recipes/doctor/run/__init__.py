"""What a run directory says of how it went: causes ranked by what speaks for them, and the keys to change."""
