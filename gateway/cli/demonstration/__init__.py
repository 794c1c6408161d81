"""What `fencing-gateway demo` plays, and with what. Nothing is imported here: a worker is to start quickly."""
