"""Manifests: tables of samples beside shards, and queries over them."""
