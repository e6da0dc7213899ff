"""What prompts and notebooks show of a dataset."""
