"""`load_dataset`: from a path to datasets by their splits."""
