"""Reprs and HTML of datasets, for prompts and notebooks."""
