"""Compiled parts of the loader: resize and token windows."""
