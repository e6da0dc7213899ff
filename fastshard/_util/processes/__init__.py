"""Processes: locks that end with them, their temporary files, workers' lifetimes."""
