"""Readers of columnar datasets."""
