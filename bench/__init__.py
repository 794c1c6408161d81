"""Measures the gateway: `python -m bench`."""
