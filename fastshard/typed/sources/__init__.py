"""Sources of shards: URLs, buckets of S3, a caller's own objects."""
