"""fusewire's webhook: intake, breaker, engine, actuators, gate and command line."""
