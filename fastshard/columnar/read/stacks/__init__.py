"""Fields and metadata columns of many samples, stacked, padded and filled."""
