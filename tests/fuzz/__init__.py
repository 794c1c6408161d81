"""Fuzzers: each is a hypothesis test; `make fuzz` feeds the same tests by a coverage-guided fuzzer."""
