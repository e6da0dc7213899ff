"""Columnar datasets: arrays by field in tar shards, under one SQLite index."""
