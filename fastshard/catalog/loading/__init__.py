"""Loading of datasets by path or by name."""
