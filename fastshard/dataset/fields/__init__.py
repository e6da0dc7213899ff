"""Alternatives of fields, and samples that change the fields of stored ones."""
