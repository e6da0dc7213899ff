"""Files, mappings and sockets: where the bytes of shards are, and their prefetch."""
