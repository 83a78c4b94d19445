"""Backtest: recorded runs through the exporter's own folding code and the real rules on the real rule engine.

``logs`` and its readers turn files (or a live Prometheus) into :class:`~fusewire_webhook.backtest.model.RunLog`;
``clock`` says when each row happened; ``exposure`` plays the rows into the exporter and scrapes it; ``engine`` has
``promtool test rules`` evaluate the pack on what was scraped; ``verdict`` compares with the labels.
"""
