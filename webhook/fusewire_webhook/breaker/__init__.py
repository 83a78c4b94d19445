"""The breaker, pure: events, state, policy, and the transition between states."""
