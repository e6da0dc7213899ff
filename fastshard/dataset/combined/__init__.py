"""Datasets made of datasets: their base, and concatenation."""
