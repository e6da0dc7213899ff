"""The AT Protocol: client, records, blobs, publishers and loaders."""
