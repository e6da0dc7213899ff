"""Shards that atdata wrote, and what it read of them."""
