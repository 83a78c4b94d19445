"""Command line of PPO."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import torch

import fusewire
from fusewire.errors import FusewireError
from fusewire_trainer.errors import SettingError, TrainerError
from fusewire_trainer.faults import FAULTS, Faults, FaultSpec
from fusewire_trainer.ppo.config import PPOConfig
from fusewire_trainer.ppo.train import SIGNALS, train


def parser() -> argparse.ArgumentParser:
    """Every field of :class:`PPOConfig` is a flag; the others concern the run, the faults and the machine."""
    top = argparse.ArgumentParser(
        prog="python -m fusewire_trainer.ppo",
        description="Train a policy with PPO on a Gymnasium environment, guarded by fusewire.",
        epilog="Under fusewire, seed, run directory and snapshot interval come from the supervisor.",
    )
    settings = top.add_argument_group("training")
    for field in fields(PPOConfig):
        settings.add_argument("--" + field.name.replace("_", "-"), **_argument(field))
    run = top.add_argument_group("run")
    run.add_argument("--seed", type=int, help="seed of everything random (standalone runs only; 0)")
    run.add_argument("--run-dir", help="folder for snapshots (standalone runs only; none)")
    run.add_argument("--resume-from", help="snapshot folder to go on from (standalone runs only; none)")
    run.add_argument("--snapshot-every", type=int, help="updates between snapshots (standalone runs only; none)")
    run.add_argument("--threads", type=int, default=1, help="threads that torch may use on the CPU (1)")
    faults = top.add_argument_group("faults")
    faults.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[:STRENGTH[:UPDATES]]@WHEN",
        help=f"WHEN: an update, or 'promoted[:UPDATE]' (of the snapshot); NAME: {', '.join(FAULTS)}; repeatable",
    )
    faults.add_argument("--fault-every-attempt", action="store_true", help="not only in the first that it hits")
    return top


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Train; the exit code is 0 when training is complete, 143 after a stop, 2 for settings that cannot be."""
    arguments = parser().parse_args(argv)
    try:
        for name, least in (("seed", 0), ("threads", 1), ("snapshot_every", 0)):
            value = getattr(arguments, name)
            if value is not None and value < least:
                raise SettingError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
        torch.set_num_threads(arguments.threads)
        config = PPOConfig(**{field.name: getattr(arguments, field.name) for field in fields(PPOConfig)})
        specs = [FaultSpec.parse(text) for text in arguments.fault]
        run = fusewire.attach(signals=SIGNALS, environ=_environment(arguments, environ))
        faults = Faults(
            specs,
            run_dir=run.run_dir,
            attempt=run.attempt,
            every_attempt=arguments.fault_every_attempt,
            say=lambda text: print(text, flush=True),
        )
        train(config, run, faults)
    except (TrainerError, FusewireError) as error:
        print(f"fusewire ppo: {error}", file=sys.stderr)
        return 2
    return run.exit_code


def _environment(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The supervisor's word, and where there is none, the command line's."""
    said = {
        "FUSEWIRE_SEED": arguments.seed,
        "FUSEWIRE_RUN_DIR": arguments.run_dir and Path(arguments.run_dir).absolute(),
        "FUSEWIRE_RESUME_FROM": arguments.resume_from and Path(arguments.resume_from).absolute(),
        "FUSEWIRE_SNAPSHOT_EVERY_STEPS": arguments.snapshot_every,
    }
    return {name: str(value) for name, value in said.items() if value is not None} | dict(environ)


def _argument(field: Field[Any]) -> dict[str, Any]:
    kinds = {"int": int, "float": float, "float | None": float}
    assert field.default is not MISSING
    return {
        "type": kinds.get(str(field.type), str),
        "default": field.default,
        "metavar": str(field.type).split(" ", maxsplit=1)[0].upper(),
        "help": f"({field.default})",
    }


if __name__ == "__main__":
    exit_code = main()
    # The interpreter's last collections need not sweep the half million objects of torch: exits are 4 × faster.
    gc.freeze()
    sys.exit(exit_code)
