"""Datasets written by mosaicml-streaming, and their values."""
