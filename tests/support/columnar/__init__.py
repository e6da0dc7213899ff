"""Columnar datasets: oracles, the original package, random work, lost power."""
