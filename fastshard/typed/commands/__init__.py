"""What the command line shows of packed datasets."""
