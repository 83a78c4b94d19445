"""A state comes back from the disk as it was given."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open

from fusewire.errors import SnapshotError
from fusewire.snapshots import SnapshotStore, load_state
from fusewire.snapshots.hostcopy import HostBuffer
from fusewire.snapshots.tree import TreeEncoder

from .support import Recorder, writer


def round_trip(run_dir: Path, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    observer = Recorder()
    one = writer(run_dir, observer=observer)
    assert one.save(1, state, **options)
    one.close()
    assert observer.failures == []
    return load_state(SnapshotStore(run_dir).list()[0].path)


def same(a: Any, b: Any) -> bool:
    """Equal in value, type, dtype and shape, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


TENSORS = {
    **{
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (
            torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
            torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
            torch.complex128,
        )
    },
    "0-dim": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "column of a matrix": torch.arange(12.0).reshape(3, 4)[:, 1],
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "generator state": torch.get_rng_state(),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_survive(tmp_path: Path, name: str) -> None:
    """Every kind of plain tensor keeps its dtype, shape and values."""
    assert same(round_trip(tmp_path, {"t": TENSORS[name]}), {"t": TENSORS[name].clone()})


ARRAYS = {
    "0-dim": np.array(2.5),
    "empty": np.empty((3, 0), np.int32),
    "fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "reversed": np.arange(5)[::-1],
    "big-endian": np.arange(3, dtype=">f4"),
    "text": np.array(["a", "bcd"]),
    "text of width 3, before wider items": np.array(["abc", "def", "ghi"]),
    "dates": np.array(["2020-01-01", "2026-11-30"], "M8[D]"),
    "complex": np.array([1 + 2j]),
    "half": np.array([0.5, 1.5], np.float16),
    "bool": np.array([True, False]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_survive(tmp_path: Path, name: str) -> None:
    """Every kind of plain numpy array keeps its dtype, shape and values, beside wider and narrower ones."""
    state = {"narrow": np.arange(3, dtype=np.int8), "a": ARRAYS[name], "wide": np.arange(3.0)}
    assert same(round_trip(tmp_path, state), state)


def test_what_a_trainer_keeps_beside_arrays_survives(tmp_path: Path) -> None:
    """Generator states, big integers, infinities, tuples, bytes and numbered keys come back unchanged."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "best": float("-inf"),
        "mean": float("nan"),
        "scalar": np.float32(0.1),
        "numbered": {0: "a", 1: {"$": 2}, (1, 2): None, "x": b"\x00\xff"},
        "tuple": (1, [2.5, True], ()),
        "text": "Grüße",
        "weights/0": np.zeros(2),
        "weights": {"0": np.ones(2)},
        "__metadata__": np.ones(1),
    }
    assert same(round_trip(tmp_path, state, may_be_nonfinite=("mean",)), state)


def test_module_and_optimizer_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    """A restored model and AdamW take the very same next step as the ones that were saved."""

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    model, optimizer = build()
    train(model, optimizer, 1)
    loaded = round_trip(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, 2)

    restored, restored_optimizer = build()
    restored.load_state_dict(loaded["model"])
    restored_optimizer.load_state_dict(loaded["optimizer"])
    train(restored, restored_optimizer, 2)
    assert same(dict(restored.state_dict()), dict(model.state_dict()))


def test_tied_parameters_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    """Two names of one tensor take its bytes once and are one tensor again after loading."""
    shared = torch.randn(64, 64)
    one = writer(tmp_path)
    one.save(1, OrderedDict(embed=shared, head=torch.nn.Parameter(shared)))
    one.close()
    info = SnapshotStore(tmp_path).list()[0]
    assert info.size < 2 * shared.numel() * 4
    loaded = load_state(info.path)
    loaded["embed"][0, 0] = 7
    assert loaded["head"][0, 0] == 7


def test_the_state_is_that_of_the_call(tmp_path: Path) -> None:
    """What training changes after save() has returned is not in the snapshot."""
    weight, array = torch.zeros(1000), np.zeros(1000)
    one = writer(tmp_path)
    one.save(1, {"weight": weight, "array": array})
    weight.add_(1)
    array += 1
    one.close()
    loaded = load_state(SnapshotStore(tmp_path).list()[0].path)
    assert loaded["weight"].sum() == 0
    assert loaded["array"].sum() == 0


def test_other_tools_can_open_the_arrays(tmp_path: Path) -> None:
    """The array file is plain safetensors, with the paths of the state as names."""
    weight = torch.randn(3, 5).bfloat16()
    one = writer(tmp_path)
    one.save(1, {"model": {"layer.weight": weight}, "count": np.arange(3)})
    one.close()
    with safe_open(SnapshotStore(tmp_path).list()[0].path / "state.safetensors", "pt") as file:
        assert set(file.keys()) == {"model/layer.weight", "count"}
        assert torch.equal(file.get_tensor("model/layer.weight"), weight)


def test_device_applies_to_tensors_only(tmp_path: Path) -> None:
    """load_state(device=…) puts tensors there and leaves numpy arrays alone."""
    one = writer(tmp_path)
    one.save(1, {"t": torch.ones(2), "a": np.ones(2)})
    one.close()
    loaded = load_state(SnapshotStore(tmp_path).list()[0].path, device="meta")
    assert loaded["t"].is_meta
    assert isinstance(loaded["a"], np.ndarray)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        torch.eye(3).to_sparse(),
        torch.empty(2, device="meta"),
        np.array([object()]),
        np.zeros(2, [("a", "f4")]),
        np.ma.masked_array([1.0], [True]),
    ],
    ids=["object", "set", "sparse", "meta", "object array", "structured array", "masked array"],
)
def test_what_cannot_be_stored_is_refused_with_its_path(tmp_path: Path, value: Any) -> None:
    """The error names the place in the state, and nothing is written."""
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    with pytest.raises(SnapshotError, match=r"replay/1 .*run\.snapshot\(\)") as caught:
        one.save(1, {"replay": [1, value]})
    assert caught.value.reason == "state"
    assert observer.reasons == ["state"]
    assert SnapshotStore(tmp_path).list() == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64],
    ids=str,
)
def test_nonfinite_parameters_are_refused(tmp_path: Path, dtype: torch.dtype, bad: float) -> None:
    """One NaN or infinity, at the very end of a large array, keeps the snapshot from being written."""
    weight = torch.ones(600_001, dtype=torch.float32)
    weight[-1] = bad
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    assert one.save(1, {"model": {"good": torch.ones(3), "w": weight.to(dtype)}})
    one.close()
    assert observer.reasons == ["nonfinite"]
    assert "model/w" in observer.failures[0][1]
    assert "model/good" not in observer.failures[0][1]
    assert SnapshotStore(tmp_path).list() == []
    assert not any((tmp_path / "snapshots").glob("*"))


FOREIGN = {
    "big-endian half": np.array([1, np.nan], ">f2"),
    "big-endian float": np.array([1, np.inf], ">f4"),
    "big-endian double": np.array([1, np.nan], ">f8"),
    "big-endian complex": np.array([1, complex(0, np.nan)], ">c8"),
    "long double": np.array([1, -np.inf], np.longdouble),
    "long complex": np.array([1, np.nan], np.clongdouble),
    "float8_e4m3fn": torch.tensor([1, torch.nan]).to(torch.float8_e4m3fn),
    "float8_e4m3fnuz": torch.tensor([-1, torch.nan]).to(torch.float8_e4m3fnuz),
    "float8_e5m2fnuz": torch.tensor([-1, torch.nan]).to(torch.float8_e5m2fnuz),
    "float8_e8m0fnu": torch.tensor([1, torch.nan]).to(torch.float8_e8m0fnu),
    "complex32": torch.tensor([1, 0, 1, torch.nan], dtype=torch.float16).view(torch.complex32),
    "numpy float": np.float32("nan"),
    "numpy double": np.float64("-inf"),
    "numpy long double": np.longdouble("nan"),
    "numpy complex": np.complex64(complex(1, np.inf)),
    "float": float("nan"),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", FOREIGN)
def test_nonfinite_numbers_of_every_kind_are_refused(tmp_path: Path, name: str) -> None:
    """A NaN hides in no foreign float type and in no scalar; the same kind is written when it is finite."""
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    assert one.save(1, {"model": {"good": 1.5, "w": [FOREIGN[name]]}})
    one.wait()
    assert observer.reasons == ["nonfinite"]
    assert "in model/w/0 (" in observer.failures[0][1]
    value = FOREIGN[name]
    finite = value[:1] if isinstance(value, (np.ndarray, torch.Tensor)) else type(value)(1)
    assert one.save(2, {"model": {"w": [finite]}})
    one.close()
    assert observer.steps == [2]


def test_an_unknown_floating_type_is_refused(tmp_path: Path) -> None:
    """Where nobody can tell NaN from a number, nothing is written."""
    packed = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    observer = Recorder()
    with pytest.raises(SnapshotError, match=r"model/w is of the dtype float4_e2m1fn_x2"):
        writer(tmp_path, observer=observer).save(1, {"model": {"w": packed}})
    assert observer.reasons == ["state"]


def test_types_of_other_libraries_are_refused_unless_safetensors_has_them(tmp_path: Path) -> None:
    """Of ml_dtypes' arrays bfloat16 is checked and written; what would come back as raw bytes is not."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    observer = Recorder()
    one = writer(tmp_path, observer=observer)
    for value in (np.ones(2, ml_dtypes.float8_e4m3fnuz), ml_dtypes.bfloat16(1)):
        with pytest.raises(SnapshotError, match="cannot be stored"):
            one.save(1, {"w": value})
    one.save(2, {"w": np.array([1, np.nan], ml_dtypes.bfloat16)})
    one.wait()
    one.save(3, {"w": np.ones(2, ml_dtypes.bfloat16)})
    one.close()
    assert observer.reasons == ["state", "state", "nonfinite"]
    assert observer.steps == [3]


def test_large_finite_values_are_not_taken_for_infinite(tmp_path: Path) -> None:
    """Numbers whose sum overflows are finite all the same."""
    state = {"f": np.full(1000, 3e38, np.float32), "h": np.full(1000, 65504, np.float16)}
    assert same(round_trip(tmp_path, state), state)


def test_named_paths_may_be_nonfinite(tmp_path: Path) -> None:
    """A mask of -inf is written where its path is allowed, and only there."""
    state = {"model": {"mask": torch.full((2, 2), -torch.inf)}}
    assert same(round_trip(tmp_path, state, may_be_nonfinite=("*/mask",)), state)


def test_numpy_users_never_pay_for_torch(tmp_path: Path) -> None:
    """Saving and loading numpy arrays imports no torch."""
    code = (
        "import sys, pathlib, numpy as np\n"
        "from fusewire.attempt import AttemptParameters\n"
        "from fusewire.snapshots import NullObserver, SnapshotStore, SnapshotWriter, load_state\n"
        f"d = pathlib.Path({str(tmp_path)!r})\n"
        "w = SnapshotWriter(d, AttemptParameters(), parent=None, lineage=dict, observer=NullObserver())\n"
        "w.save(1, {'a': np.arange(3)}); w.close()\n"
        "assert load_state(SnapshotStore(d).list()[0].path)['a'].sum() == 3\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_is_reused_between_snapshots() -> None:
    """A second copy of a state of the same size takes no new memory."""
    buffer = HostBuffer()
    first = np.frombuffer(buffer.copy({"a": np.zeros(1000)}).data, np.uint8).ctypes.data
    second = np.frombuffer(buffer.copy({"a": np.ones(900)}).data, np.uint8).ctypes.data
    assert first == second


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plain=JSON_LIKE,
    array=hnp.arrays(
        hnp.integer_dtypes() | hnp.unsigned_integer_dtypes() | hnp.boolean_dtypes() | hnp.unicode_string_dtypes(),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
)
def test_any_state_survives(tmp_path_factory: pytest.TempPathFactory, plain: Any, array: Any) -> None:
    """Whatever is made of the storable kinds comes back the same."""
    state = {"plain": plain, "arrays": [np.arange(3, dtype=np.int16), array, array.T, np.float64(1)]}
    assert same(round_trip(tmp_path_factory.mktemp("run"), state, may_be_nonfinite=("plain*",)), state)


def test_the_tree_is_strict_json() -> None:
    """The tree of a state with NaN in it parses with any JSON parser."""
    tree = TreeEncoder().encode({"x": float("nan"), 3: (1,)})
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
