"""Command line."""

from fastshard.cli.entry import main as main
