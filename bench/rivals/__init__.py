"""Readers and stores that the benches compare, their data and their web server."""
