"""Datasets under names: entries, labels, schemas and lenses in stores of rows."""
