"""Formats: samples, decoders, encoders, tar shards, and the registry of the others."""

from fastshard.formats.registry import Format as Format
from fastshard.formats.registry import find_format as find_format
from fastshard.formats.registry import formats as formats
from fastshard.formats.registry import register as register

__all__ = ["Format", "find_format", "formats", "register"]
