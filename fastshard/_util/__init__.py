"""Helpers that know nothing of shards."""
