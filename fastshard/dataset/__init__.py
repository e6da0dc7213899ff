"""Datasets: many shards as one sequence of samples."""
