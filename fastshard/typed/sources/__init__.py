"""Sources of shards: URLs, buckets of S3, user objects."""
