"""Routes over stored hours: statistics, reports, exports and forecasts."""
