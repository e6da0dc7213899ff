"""Command line."""

from fastshard.cli.parser import main as main
