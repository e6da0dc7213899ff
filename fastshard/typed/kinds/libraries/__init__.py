"""Kinds of other libraries' values, stored as bytes."""
