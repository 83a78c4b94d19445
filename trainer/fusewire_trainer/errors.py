"""Errors of the workloads: one line for a person, and a machine-readable ``reason``."""

from __future__ import annotations


class TrainerError(Exception):
    """A workload cannot go on with what it was given."""

    reason = "trainer"


class SettingError(TrainerError):
    """A setting is out of range, or does not fit the environment. The message names the flag and the remedy."""

    reason = "setting"
