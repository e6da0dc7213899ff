"""Datasets that mosaicml-streaming wrote, and what their values are."""
