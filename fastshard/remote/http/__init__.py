"""HTTP: connections, ranges by urllib3 and by the native exchange, responses."""
