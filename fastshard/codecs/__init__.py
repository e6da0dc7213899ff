"""Compression and hashes of files, and files decompressed once."""
