"""Stacks of arrays: one rule for different shapes, and values of rows without data."""
