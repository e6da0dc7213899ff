"""Where remote bytes are: HTTP, the Hugging Face hub, object stores, a cache."""
