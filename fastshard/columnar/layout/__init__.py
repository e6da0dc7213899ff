"""Files of a columnar dataset: the index's schema, shards, packs, array headers."""
