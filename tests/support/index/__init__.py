"""Indexes: damage of every kind, and an oracle of JSON."""
