"""Readers of shards, and the files that they read."""
