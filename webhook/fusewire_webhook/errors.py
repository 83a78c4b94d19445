"""Errors of the webhook package: one line for a person, and a machine-readable ``reason``."""

from __future__ import annotations


class WebhookError(Exception):
    """fusewire cannot go on with what it was given."""

    reason = "webhook"


class ConfigError(WebhookError):
    """A configuration file, key or flag is wrong. The message names it and the remedy, a line for each."""

    reason = "config"

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PayloadError(WebhookError):
    """A request body is not what Alertmanager sends."""

    reason = "payload"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class JournalError(WebhookError):
    """The journal could not store or read an event."""

    reason = "journal"


class IllegalTransitionError(WebhookError):
    """An event arrived that cannot happen in the present state: a fault of fusewire itself."""

    reason = "illegal_transition"


class ActuatorError(WebhookError):
    """An attempt could not be started or stopped."""

    reason = "actuator"


class PrometheusError(WebhookError):
    """Prometheus did not answer, or answered with an error."""

    reason = "prometheus"


class BacktestError(WebhookError):
    """Recorded runs could not be judged: a process that did it was killed."""

    reason = "backtest"


class StackError(WebhookError):
    """Prometheus or Alertmanager could not be started."""

    reason = "stack"


class CommandError(WebhookError):
    """A person's command cannot be carried out on this run now."""

    reason = "command"


class UnseenError(CommandError):
    """Something was decided on the run that the person had not seen; nothing is done."""

    reason = "unseen"


class UnconfirmedError(CommandError):
    """It would set stable snapshots aside, and the person has not said that this is meant; nothing is done."""

    reason = "unconfirmed"


class UnknownRunError(WebhookError):
    """No run of this name is guarded here."""

    reason = "unknown_run"
