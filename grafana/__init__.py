"""Grafana dashboards of fusewire as code: ``python -m grafana.build`` writes them, ``grafana.verify`` asks them.

Each module of a dashboard has one function ``dashboard(links)``. They share panels (:mod:`grafana.panels`), what
stands around them (:mod:`grafana.frame`) and PromQL (:mod:`grafana.queries`). See docs/dashboards.md.
"""
