"""Faults that really happen to a training, for demonstrations and tests. No reported number is ever faked.

``--fault NAME[:STRENGTH[:UPDATES]]@WHEN`` where WHEN is an update number, or ``promoted``: the first update after
a snapshot of the run was promoted (its link ``stable_checkpoint_latest`` exists), or ``promoted:60``: one of update
60 or later. A fault strikes in one attempt only (the file ``fault-NAME.json`` in the run directory remembers which;
of a second fault of that name ``fault-NAME-2.json``)
unless it is asked for in every attempt.
"""

from fusewire_trainer.faults.kinds import FAULTS, Fault
from fusewire_trainer.faults.plan import Faults, FaultSpec, Trigger

__all__ = ["FAULTS", "Fault", "FaultSpec", "Faults", "Trigger"]
