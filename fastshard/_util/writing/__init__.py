"""Questions that all writers share: unclosed ones, dtypes that are stored."""
