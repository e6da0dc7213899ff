"""Thin adapters to other libraries, each imported by its own name."""
