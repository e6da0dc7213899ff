"""Kinds of fields: annotations, decoders, encodings of other libraries."""
