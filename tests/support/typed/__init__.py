"""Shards written by atdata, and their values as atdata read them."""
