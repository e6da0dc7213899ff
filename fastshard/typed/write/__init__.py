"""Writing of typed samples: payloads and shards."""
