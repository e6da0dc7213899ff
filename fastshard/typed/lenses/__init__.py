"""Lenses between types of samples, and the network that finds them."""
