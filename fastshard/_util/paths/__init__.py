"""Paths, globs and URLs as text."""
