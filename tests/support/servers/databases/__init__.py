"""Servers of databases: Redis and Postgres, each a process that ends with the tests."""
