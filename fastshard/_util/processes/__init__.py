"""Processes: file locks, temporary files, lifetimes of workers."""
