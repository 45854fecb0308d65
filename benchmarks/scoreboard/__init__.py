"""Forecasts against every published measurement that we have: `python -m benchmarks.scoreboard`."""
