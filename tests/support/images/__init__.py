"""Pictures for tests: encoded, patched, damaged."""
