"""From a run's configuration and the breaker's parameters to what the actuator starts. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.attempt import AttemptParameters
from fusewire.attempt_files import OUTPUT_FILE, attempt_folder
from fusewire.snapshots.layout import SNAPSHOTS
from fusewire_webhook.actuators import Launch
from fusewire_webhook.breaker.actions import StartAttempt
from fusewire_webhook.settings.config import RunConfig


def fill(argv: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """Replace ``{name}`` of the known names inside each argument; every other brace stays as it is."""
    pattern = re.compile("|".join(re.escape(f"{{{name}}}") for name in values))
    return tuple(pattern.sub(lambda match: str(values[match.group()[1:-1]]), word) for word in argv)


def parameters_of(
    run: str, action: StartAttempt, config: RunConfig, run_dir: Path, *, host: str, port: int
) -> AttemptParameters:
    """What the trainer is told."""
    return AttemptParameters(
        run=run,
        run_dir=str(run_dir),
        attempt=action.attempt,
        algorithm=config.algorithm,
        lr_scale=action.lr_scale,
        seed=action.seed,
        rng=action.rng,
        resume_from="" if action.resume_from is None else str(run_dir / SNAPSHOTS / action.resume_from),
        exporter_host=host,
        exporter_port=port,
        window_seconds=config.window_seconds,
        snapshot_every_steps=config.snapshots.every_steps,
        return_window_updates=config.return_window_updates,
    )


def launch_of(parameters: AttemptParameters, config: RunConfig) -> Launch:
    """What the actuator starts."""
    run_dir = Path(parameters.run_dir)
    values = {
        "run": parameters.run,
        "run_dir": parameters.run_dir,
        "attempt": parameters.attempt,
        "lr_scale": f"{parameters.lr_scale:g}",
        "seed": parameters.seed,
        "resume_from": parameters.resume_from,
    }
    return Launch(
        run=parameters.run,
        attempt=parameters.attempt,
        argv=fill(config.command, values),
        environment={**config.env, **parameters.environment()},
        run_dir=parameters.run_dir,
        cwd=config.cwd,
        log_path=str(attempt_folder(run_dir, parameters.attempt) / OUTPUT_FILE),
    )


def purge_argv(config: RunConfig, *, run: str, run_dir: Path, watermark: Any) -> tuple[str, ...]:
    """The purge hook's command; a watermark that is no string is written as JSON, none as an empty string."""
    text = "" if watermark is None else watermark if isinstance(watermark, str) else json.dumps(watermark)
    return fill(config.purge_command, {"watermark": text, "run": run, "run_dir": run_dir})
