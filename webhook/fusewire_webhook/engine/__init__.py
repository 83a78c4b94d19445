"""The only place with effects: journals events, acts, journals the outcome."""
