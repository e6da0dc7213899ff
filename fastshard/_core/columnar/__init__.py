"""Rows of columnar datasets, one at a time and in batches."""
