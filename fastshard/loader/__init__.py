"""Batches ahead of their use, made by threads: images, token windows, statistics."""
