"""What the exporter shows, as collectors of :mod:`prometheus_client`.

Each refuses gracefully: what cannot be read is absent, the rest is there, and nothing raises into a scrape.
"""

from fusewire.collectors.cgroup import CgroupCollector
from fusewire.collectors.nvml import NvmlCollector
from fusewire.collectors.torch_memory import TorchMemoryCollector
from fusewire.collectors.training import TrainingCollector

__all__ = ["CgroupCollector", "NvmlCollector", "TorchMemoryCollector", "TrainingCollector"]
