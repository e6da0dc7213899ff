"""Builders, servers, oracles and processes that tests share."""
