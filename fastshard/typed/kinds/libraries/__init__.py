"""Kinds whose values are of other libraries, stored as bytes."""
