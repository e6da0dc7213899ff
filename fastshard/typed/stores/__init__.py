"""Stores of shards: a folder, a bucket, a repository's blobs."""
