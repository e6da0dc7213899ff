"""Stores of shards: a folder, a bucket, the blobs of a repository."""
