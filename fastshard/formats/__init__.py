"""Formats of shards: one module each, over the common core."""
