"""Blobs of the AT Protocol: their cache, sources, shards and store."""
