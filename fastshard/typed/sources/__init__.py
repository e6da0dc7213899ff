"""Where shards are: URLs, buckets of S3, sources of a caller's own."""
