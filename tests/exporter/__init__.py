"""The exporter in real processes, over real HTTP."""
