"""Chaos on real processes: workers, gateway and store are stopped, killed and cut off; what they told is judged."""
