"""An S3 proxy that refuses stale writes."""

__version__ = "0.1.0"
