"""Sidecar files that list a shard's extents: one module a format."""
