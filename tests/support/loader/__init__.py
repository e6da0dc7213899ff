"""Batches of loaders, compared with those of `batches`."""
