"""The breaker, its journal and its engine."""
