"""Compression and hashes of files, and files that are decompressed once."""
