"""Requests of any method with bounded answers: JSON, uploads, whole objects."""
