"""Stores of an index: SQLite, Redis, Postgres."""
