"""Parts of all writers: reports of unclosed ones, dtypes that are stored."""
