"""Publishing: records of schemas, datasets, labels and lenses in the own repository."""
