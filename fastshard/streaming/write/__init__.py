"""Writers of streaming datasets."""
