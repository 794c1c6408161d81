"""A program that works under a lease, and ends when the lease does."""
