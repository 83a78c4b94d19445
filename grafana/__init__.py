"""Grafana dashboards of fusewire as code: ``python -m grafana.build`` writes them, ``grafana.verify`` asks them.

Each module of a dashboard has one function ``dashboard(links)``; what they share in looks is in
:mod:`grafana.panels`, what they share in PromQL in :mod:`grafana.queries`. docs/dashboards.md
shows how to change one.
"""
