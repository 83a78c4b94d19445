"""Workloads to guard."""
