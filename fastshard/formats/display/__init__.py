"""What notebooks show of samples."""
