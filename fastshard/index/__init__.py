"""Indexes: sidecar files that list the extents of shards, one module a format."""
