"""A fake of libnvidia-ml.so.1, compiled at test time, that stands behind the real pynvml.

    library = nvml_fake.build(tmp_path)
    control = nvml_fake.Control(tmp_path / "gpus")
    control.write(gpus=[nvml_fake.Gpu(used=5 << 30)], processes=[nvml_fake.Process(gpu=0, pid=42, used=1 << 30)])
    subprocess.run([...], env=os.environ | nvml_fake.environment(library, control))

pynvml loads the library by its bare name, so it must be on LD_LIBRARY_PATH before Python starts: use it in child
processes. The control file is read at every call and may be rewritten at any time (also with ``process`` lines for
PIDs that exist only later).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml.c"

GIB = 1 << 30

LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""

DRIVER_NOT_LOADED = 9


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What one GPU says of itself."""

    total: int = 80 * GIB
    used: int = 0
    temperature: int = 40
    utilization: int = 0
    """Percent."""
    energy: int = 0
    """Millijoules."""
    ecc: int = 0
    fail: int = 0
    """NVML error code of every query; 0: none."""
    unsupported: int = 0
    """1: it knows its memory only."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A compute process on a GPU."""

    gpu: int
    pid: int
    used: int


class Control:
    """The file that the fake answers from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self, *, gpus: Sequence[Gpu] = (), processes: Sequence[Process] = (), init: int = 0, delay_ms: int = 0
    ) -> None:
        """Replace what the fake says, in one step."""
        lines = [f"init {init}", f"delay {delay_ms}"]
        for number, gpu in enumerate(gpus):
            lines += [f"gpu {number} {key} {value}" for key, value in asdict(gpu).items()]
        lines += [f"process {process.gpu} {process.pid} {process.used}" for process in processes]
        draft = self.path.with_suffix(".draft")
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self.path)


def build(folder: Path) -> Path:
    """Compile the library into ``folder``.

    Raises:
        RuntimeError: there is no C compiler, or it failed.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler on PATH: install gcc to run the tests with the fake NVML")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wl,-soname,libnvidia-ml.so.1"]
    done = subprocess.run([*command, "-o", library, SOURCE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{SOURCE} does not compile: {done.stderr}")
    return library


def environment(library: Path, control: Control) -> dict[str, str]:
    """Variables under which a child process finds the fake."""
    return {"LD_LIBRARY_PATH": str(library.parent), "FUSEWIRE_FAKE_NVML": str(control.path)}
