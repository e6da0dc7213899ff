"""Writers of columnar datasets."""
