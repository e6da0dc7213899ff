"""Compaction of fields: their arrays copied to new shards."""
