"""The HTTP surface: intake of alerts, API, service discovery, metrics."""
