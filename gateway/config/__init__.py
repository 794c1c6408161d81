"""The configuration: where it comes from, what may stand in it, and what is wrong with it."""
