"""Damaged indexes, and an oracle of JSON indexes."""
