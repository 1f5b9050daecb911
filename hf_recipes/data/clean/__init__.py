"""Cleaning rules, each usable alone, one family a file. All are off until a recipe turns them on under ``clean:``."""
