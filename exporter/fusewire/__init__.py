"""fusewire in the trainer's process: telemetry, snapshots, attempt parameters.

run = fusewire.attach()
while not run.should_stop:
    ...
    run.step(update, approx_kl=kl, value_loss=loss)
run.complete()
"""

from fusewire.attaching import attach
from fusewire.attempt import AttemptParameters
from fusewire.errors import AttemptError, FusewireError, RunNameError, SnapshotError
from fusewire.run import Run
from fusewire.saving import LoadedSnapshot
from fusewire.signals import Signal
from fusewire.version import __version__

__all__ = [
    "AttemptError",
    "AttemptParameters",
    "FusewireError",
    "LoadedSnapshot",
    "Run",
    "RunNameError",
    "Signal",
    "SnapshotError",
    "__version__",
    "attach",
]
