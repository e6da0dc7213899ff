"""Formats: samples, decoders, encoders, tar shards, and the registry of the others."""
