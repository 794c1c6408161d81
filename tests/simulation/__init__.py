"""Seeded simulation: the real service over a simulated clock, store and upstream. `docs/simulation.md`."""
