"""fusewire in the trainer's process: telemetry, snapshots, attempt parameters."""
