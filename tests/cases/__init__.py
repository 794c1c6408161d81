"""Requests that have broken other S3 servers and proxies, each with its neighbours: see `table.py`."""
