"""Sources of datasets: paths, patterns and URLs, to lists of shards."""
