"""Datasets as sequences: order, iteration, batches, images, loading."""
