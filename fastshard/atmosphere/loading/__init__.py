"""Loading: records of repositories by address, name and version."""
