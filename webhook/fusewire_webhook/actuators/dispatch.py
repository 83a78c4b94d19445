"""One actuator in front of several: a webhook may guard processes of its machine and containers together."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire_webhook.actuators import Actuator, Gone, Handle, Launch, Status
from fusewire_webhook.errors import ActuatorError


class DispatchingActuator:
    """Starts each run by the actuator that its configuration asks for, and treats each handle by its maker.

    A run whose configuration has changed since its attempt was started is thereby still stopped the old way.

    Args:
        kinds: actuators by what their handles say under ``actuator``.
        kind_of: the kind of each run.
    """

    def __init__(self, kinds: Mapping[str, Actuator], *, kind_of: Mapping[str, str]) -> None:
        self._kinds = dict(kinds)
        self._kind_of = dict(kind_of)

    async def start(self, launch: Launch) -> Handle:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        return await self._kinds[self._kind_of[launch.run]].start(launch)

    async def status(self, handle: Handle) -> Status:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        return await self._maker(handle).status(handle)

    async def wait(self, handle: Handle) -> Status:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        return await self._maker(handle).wait(handle)

    async def stop(self, handle: Handle, *, grace_seconds: float, at_once: bool = False) -> Gone:
        """See :class:`~fusewire_webhook.actuators.Actuator`."""
        return await self._maker(handle).stop(handle, grace_seconds=grace_seconds, at_once=at_once)

    async def find(self, run: str, attempt: int, run_dir: str) -> Handle | None:
        """The handle, whichever actuator has started the attempt."""
        first = self._kind_of.get(run, "")
        for kind in sorted(self._kinds, key=lambda kind: kind != first):
            handle = await self._kinds[kind].find(run, attempt, run_dir)
            if handle is not None:
                return handle
        return None

    async def close(self) -> None:
        """Let go of the resources of all."""
        for actuator in self._kinds.values():
            await actuator.close()

    def _maker(self, handle: Handle) -> Actuator:
        kind = handle.get("actuator")
        if kind not in self._kinds:
            raise ActuatorError(f"handle {handle!r} is of no actuator that is in use here")
        return self._kinds[kind]
