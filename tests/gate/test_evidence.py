"""Evidence on an exit from the file of last values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.evidence import PrometheusEvidence, nonfinite_in, read_last_values
from fusewire_webhook.watch.prometheus import Sample

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=3,
)


@pytest.mark.parametrize(
    ("values", "reasons"),
    [
        ({}, []),
        ({"values": {"value_loss": 1.0}, "nonfinite": {"value_loss": 0}}, []),
        ({"values": {"value_loss": "NaN"}}, ["value_loss was not finite"]),
        ({"values": {"policy_loss": "-Inf"}}, ["policy_loss was not finite"]),
        ({"values": {"approx_kl": 0.1}, "nonfinite": {"approx_kl": 2}}, ["approx_kl was not finite"]),
        ({"values": {"grad_norm": "Inf"}, "nonfinite": {"grad_norm": 1}}, []),
        (
            {"values": {"grad_norm": "NaN"}, "nonfinite": {"grad_norm": 5}},
            ["5 gradient norms were not finite, the last one too"],
        ),
        ({"values": {"grad_norm": 1.0}, "nonfinite": {"grad_norm": 30}}, []),
        ({"values": {"episode_return": "NaN"}, "nonfinite": {"episode_return": 9}}, []),
    ],
)
def test_last_values_tell_a_divergence(values: dict[str, Any], reasons: list[str]) -> None:
    """A loss, KL or entropy that was once not finite is one; a gradient norm only several times; a return never."""
    assert list(nonfinite_in(values)) == reasons


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["step", "values", "nonfinite"]), JSON | st.dictionaries(st.text(), JSON)))
def test_any_file_is_read_without_raising(values: dict[str, Any]) -> None:
    """Whatever JSON a dying trainer left, it is judged and not raised over."""
    assert all(isinstance(reason, str) for reason in nonfinite_in(values))


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff"])
def test_torn_file_is_ignored(tmp_path: Path, text: bytes) -> None:
    """A half-written file counts as none."""
    folder = tmp_path / "attempts" / "004"
    folder.mkdir(parents=True)
    (folder / "last-values.json").write_bytes(text)
    assert read_last_values(tmp_path, 4) == {}


class Away:
    """A Prometheus that does not answer."""

    async def query(self, expr: str, time: float | None = None) -> None:
        raise PrometheusError("cannot be reached")


class Limited:
    """A Prometheus whose rules trip at eight non-finite gradient norms in a row, and which saw ``seen``."""

    def __init__(self, seen: int) -> None:
        self.seen = seen

    async def query(self, expr: str, time: float | None = None) -> list[Sample]:
        if "fusewire:nonfinite_streak:limit" in expr:
            return [Sample(labels={}, value=8.0, time=0.0)]
        _, found, least = expr.partition('rl_nonfinite_streak{signal="grad_norm"')[2].rpartition(" >= ")
        return [Sample(labels={}, value=float(self.seen), time=0.0)] if found and self.seen >= float(least) else []


@pytest.mark.parametrize("seen", [7, 8])
async def test_the_rules_say_how_many_gradient_norms_in_a_row_are_a_divergence(tmp_path: Path, seen: int) -> None:
    """Their limit, with its overrides, counts for what Prometheus saw and for the file of last values."""
    folder = tmp_path / "r" / "attempts" / "000"
    folder.mkdir(parents=True)
    (folder / "last-values.json").write_text(
        json.dumps({"step": 12, "values": {"grad_norm": "NaN"}, "nonfinite": {"grad_norm": seen}})
    )
    prometheus: Any = Limited(seen)
    found = await PrometheusEvidence(prometheus, runs_dir=tmp_path).exit_evidence("r", 0, tmp_path / "r")
    assert found.failure_class == ("divergence" if seen >= 8 else "infrastructure")
    assert len(found.reasons) == (2 if seen >= 8 else 0)


async def test_without_prometheus_the_file_decides_and_nothing_is_claimed_to_be_clean(tmp_path: Path) -> None:
    """No method raises: the file still tells a divergence, and cleanliness is unknown."""
    away: Any = Away()
    evidence = PrometheusEvidence(away, runs_dir=tmp_path)
    folder = tmp_path / "r" / "attempts" / "000"
    folder.mkdir(parents=True)
    (folder / "last-values.json").write_text('{"step": 12, "values": {"value_loss": "NaN"}}')
    found = await evidence.exit_evidence("r", 0, tmp_path / "r")
    assert (found.failure_class, found.step) == ("divergence", 12)
    assert found.reasons == ("value_loss was not finite", "Prometheus could not be asked: cannot be reached")
    assert (await evidence.exit_evidence("r", 1, tmp_path / "r")).failure_class == "infrastructure"
    assert await evidence.unclean_since("r", 0, "step-000000000010-a000") is None
    assert await evidence.last_step("r", 0) == 12
