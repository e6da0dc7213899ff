"""Commands for packed datasets."""
