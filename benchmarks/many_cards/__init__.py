"""Programs that one source timed on many cards, beside forecasts."""
