"""Compression, hashes and decompressed files of shards."""
