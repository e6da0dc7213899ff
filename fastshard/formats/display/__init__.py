"""HTML of samples, for notebooks."""
