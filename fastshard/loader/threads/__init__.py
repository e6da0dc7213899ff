"""Threads of a loader: claims, the ring of batches, errors, and their end."""
