"""Helpers without knowledge of shards."""
