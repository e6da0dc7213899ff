"""Datasets: many shards as one sequence of samples."""

from importlib import import_module


def __getattr__(name: str) -> object:
    """Resolve names in pickles made while `fastshard.dataset` was a module."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fastshard.dataset.dataset"), name)
