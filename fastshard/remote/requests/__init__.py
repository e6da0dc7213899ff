"""Requests of HTTP: headers, authorization, redirects, heads of responses."""
