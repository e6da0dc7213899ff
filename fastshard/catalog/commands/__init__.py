"""Commands ``datasets`` and ``schemas``."""
