"""Descriptions of sample types: schemas as JSON, types made of them."""
