"""Everything by which the webhook asks Prometheus and Alertmanager."""
