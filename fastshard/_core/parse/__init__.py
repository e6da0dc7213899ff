"""Parsers of file formats: tar headers, JSON indexes, SQLite pages."""
