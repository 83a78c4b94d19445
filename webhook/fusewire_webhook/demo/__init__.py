"""The demonstration: a real PPO run under ``fusewire run``, wrecked by a real fault, watched from outside."""
