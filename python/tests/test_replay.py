# SPDX-License-Identifier: Apache-2.0
"""Counting from Python: real routes, every trap, arrays of every kind, and laws."""

from __future__ import annotations

import array
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import bincount
from hypothesis import given
from hypothesis import strategies as st

import routepack

DTYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64"]


def routes(rows: Any, dtype: str = "int32") -> npt.NDArray[Any]:
    """Ids [tokens, 1, k]."""
    return np.array(rows, dtype=dtype)[:, None, :]


def random_routes(rng: np.random.Generator, tokens: int, layers: int, k: int, experts: int) -> npt.NDArray[np.int64]:
    return np.argsort(rng.random((tokens, layers, experts)), axis=2)[:, :, :k]


# Real routes.


def test_real_answers_reproduce_the_counts_of_the_example_window(root, gptoss_routes):
    window = routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")
    for sample, ids in gptoss_routes:
        counts, report = routepack.count_routes_report(ids, experts=32)
        np.testing.assert_array_equal(counts, window.counts[sample])
        assert (report.recorded == len(ids)).all() and not report.missing.any() and not report.duplicates.any()


def test_real_answers_built_into_a_window_are_that_window(root, gptoss_routes, tmp_path):
    example = routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")
    builder = routepack.WindowBuilder(experts=32, top_k=4)
    for sample, ids in reversed(gptoss_routes):
        builder.add(ids, length=int(example.lengths[sample]), id=sample)
    builder.seal(tmp_path / "w.safetensors")
    window = routepack.Window.load(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(window.counts, example.counts[window.ids])
    assert window.ids is not None and window.ids.tolist() == sorted(sample for sample, _ in gptoss_routes)


def test_a_real_decode_counts_as_numpy_counts(olmoe_routes):
    for dtype in DTYPES:
        counts = routepack.count_routes(olmoe_routes.astype(dtype), experts=64)
        np.testing.assert_array_equal(counts, bincount(olmoe_routes, 64))


def test_a_real_batch_counts_as_numpy_counts_on_any_number_of_threads(gptoss_routes):
    samples = [ids for _, ids in gptoss_routes]
    expected = np.stack([bincount(ids, 32) for ids in samples])
    for threads in (1, 2, 5):
        counts, report = routepack.count_routes_batch(samples, experts=32, threads=threads)
        np.testing.assert_array_equal(counts, expected)
        assert report.recorded.shape == (24, 24)


# Traps.


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_rows_of_minus_one_are_missing(dtype):
    counts, report = routepack.count_routes_report(routes([[1, 2], [-1, -1]], dtype), experts=3)
    assert counts.tolist() == [[0, 1, 1]]
    assert report.sentinel.tolist() == [1] and report.missing.tolist() == [1]


def test_zeros_that_mean_not_recorded_are_not_expert_0():
    counts, report = routepack.count_routes_report(routes([[1, 2], [0, 0]]), experts=3)
    assert counts.tolist() == [[0, 1, 1]] and report.zero.tolist() == [1]


def test_dense_layers_may_be_present_or_absent():
    moe = random_routes(np.random.default_rng(0), 5, 2, 2, 4)
    both = np.concatenate([np.zeros((5, 1, 2), dtype=np.int64), moe], axis=1)
    expected = bincount(moe, 4)
    np.testing.assert_array_equal(routepack.count_routes(moe, experts=4), expected)
    np.testing.assert_array_equal(routepack.count_routes(both, experts=4, layers=[1, 2]), expected)
    counts, report = routepack.count_routes_report(both, experts=4)
    assert counts[0].tolist() == [0, 0, 0, 0] and report.not_captured.tolist() == [True, False, False]


def test_the_last_token_has_no_row():
    ids = routes([[1, 2]])
    assert routepack.count_routes_report(ids, experts=3, length=2)[1].absent.tolist() == [1]
    assert routepack.count_routes(ids, experts=3, length=2, missing="spread").tolist() == [[0, 2, 2]]
    with pytest.raises(routepack.InvalidInput, match="found 1 rows of ids for 2 tokens"):
        routepack.count_routes(ids, experts=3, length=2, missing="refuse")


def test_a_wrong_number_of_bytes_is_refused():
    raw = bytes(range(24))
    assert routepack.routes_from_bytes(raw, dtype="int32", layers=1, top_k=2).shape == (3, 1, 2)
    with pytest.raises(routepack.InvalidInput, match="found 24 bytes, wanted 32 for 4 tokens"):
        routepack.routes_from_bytes(raw, dtype="int32", layers=1, top_k=2, tokens=4)
    with pytest.raises(routepack.InvalidInput, match="wanted a multiple of 16"):
        routepack.routes_from_bytes(raw, dtype="int64", layers=1, top_k=2)


def test_physical_ids_come_back_through_their_map():
    ids = routes([[0, 3], [1, 2]])
    counts = routepack.count_routes(ids, experts=3, physical_to_logical=np.array([[2, 0, 2, 1]]))
    assert counts.tolist() == [[1, 1, 2]]
    with pytest.raises(routepack.InvalidInput, match=r"physical_to_logical\[0, 0\]: found 3, wanted 0 to 2"):
        routepack.count_routes(ids, experts=3, physical_to_logical=[[3, 0, 2, 1]])
    with pytest.raises(routepack.InvalidInput, match="physical_to_logical: found 2 layers, wanted 1"):
        routepack.count_routes(ids, experts=2, physical_to_logical=[[0, 1], [0, 1]])
    with pytest.raises(routepack.InvalidInput, match="found 1 dimensions"):
        routepack.count_routes(ids, experts=3, physical_to_logical=[2, 0, 2, 1])


def test_padding_rows_with_fake_routes_are_masked():
    ids = routes([[1, 2], [0, 1], [2, 0]], "uint8")
    for mask in ([1, 0, 1], np.array([True, False, True]), np.array([2.0, 0.0, 1.0]).astype(np.int64)):
        assert routepack.count_routes(ids, experts=3, mask=mask).tolist() == [[1, 1, 2]]
    with pytest.raises(routepack.InvalidInput, match="mask: found 2 values, wanted 3"):
        routepack.count_routes(ids, experts=3, mask=[1, 0])


def test_types_too_narrow_for_the_experts_are_refused():
    with pytest.raises(routepack.InvalidInput, match="uint8, which ends at 255, wanted a type that holds 300 experts"):
        routepack.count_routes(routes([[1, 2]], "uint8"), experts=300)
    with pytest.raises(routepack.InvalidInput, match="found uint64, wanted uint8, int8"):
        routepack.count_routes(routes([[1, 2]], "uint64"), experts=3)
    with pytest.raises(routepack.InvalidInput, match="found float32, wanted integers"):
        routepack.count_routes(routes([[1, 2]], "float32"), experts=3)


def test_foreign_byte_order_and_fortran_order_are_read_right():
    ids = random_routes(np.random.default_rng(1), 30, 3, 4, 300).astype(np.int32)
    expected = bincount(ids, 300)
    for other in (ids.astype(">i4"), np.asfortranarray(ids), ids[::-1], np.repeat(ids, 2, axis=0)[::2], ids.copy("K")):
        np.testing.assert_array_equal(routepack.count_routes(other, experts=300), expected)
    read_only = ids.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(routepack.count_routes(read_only, experts=300), expected)


def test_samples_of_a_batch_have_the_same_layers():
    ids = [np.ones((1, 1, 1), dtype=np.int32), np.ones((1, 2, 1), dtype=np.int32)]
    with pytest.raises(routepack.InvalidInput, match=r"ids\[1\]: found 2 layers"):
        routepack.count_routes_batch(ids, experts=2)
    builder = routepack.WindowBuilder(experts=2, top_k=1)
    builder.add(ids[0])
    with pytest.raises(routepack.InvalidInput, match="found 2 layers, wanted 1 as in the samples before"):
        builder.add(ids[1])


def test_a_prefix_that_two_segments_repeat_is_counted_once():
    whole = random_routes(np.random.default_rng(2), 9, 2, 2, 8)
    for start in (0, 3, 5):
        joined = routepack.join_segments([(0, whole[:5]), (start, whole[start:])])
        np.testing.assert_array_equal(joined, whole)
    with pytest.raises(routepack.InvalidInput, match=r"segments\[1\]: found first token 6, wanted 0 to 5: no gap"):
        routepack.join_segments([(0, whole[:5]), (6, whole[6:])])
    with pytest.raises(routepack.InvalidInput, match="found 1 layers with 2 ids per row, wanted 2 with 2"):
        routepack.join_segments([(0, whole), (0, whole[:, :1])])
    with pytest.raises(routepack.InvalidInput, match="found none"):
        routepack.join_segments([])


def test_ids_that_no_expert_has_are_refused_or_left_out_as_asked():
    ids = routes([[1, 2], [1, 9]])
    with pytest.raises(routepack.InvalidInput, match="ids, layer 0, token 1: found id 9, wanted 0 to 2"):
        routepack.count_routes(ids, experts=3)
    counts, report = routepack.count_routes_report(ids, experts=3, invalid="leave-out")
    assert counts.tolist() == [[0, 1, 1]] and report.invalid.tolist() == [1]


def test_duplicates_are_reported():
    assert routepack.count_routes_report(routes([[1, 1], [1, 2]]), experts=3)[1].duplicates.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "guess"}, 'missing: found "guess", wanted "leave-out" or "spread" or "refuse"'),
        ({"invalid": "keep"}, 'invalid: found "keep"'),
        ({"layers": []}, "layers: found none"),
        ({"layers": [1]}, "layers: found index 1, wanted 0 to 0"),
        ({"experts": 0}, "experts: found 0"),
        ({"experts": -5}, "experts: found -5"),
        ({"experts": 1 << 40}, "experts: found"),
    ],
)
def test_nonsense_options_are_refused(options, message):
    with pytest.raises(routepack.InvalidInput, match=message):
        routepack.count_routes(routes([[1, 2]]), **{"experts": 3, **options})


def test_shapes_are_refused_with_what_was_wanted():
    with pytest.raises(routepack.InvalidInput, match=r"found 2 dimensions, wanted 3: \[tokens, layers, top_k\]"):
        routepack.count_routes(np.ones((3, 2), dtype=np.int32), experts=3)
    with pytest.raises(routepack.InvalidInput, match="masks: found 1, wanted 2"):
        routepack.count_routes_batch(np.ones((2, 1, 1, 1), dtype=np.int32), experts=3, masks=[[1]])
    with pytest.raises(routepack.InvalidInput, match="found str, wanted an array"):
        routepack.count_routes("ids", experts=3)


# Arrays of other libraries.


class OnDevice:
    """A tensor of another library, as DLPack shows it."""

    def __init__(self, values: npt.NDArray[Any], device: int) -> None:
        self._values = values
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)


def test_tensors_in_host_memory_are_taken_and_others_refused():
    ids = routes([[1, 2]])
    assert routepack.count_routes(OnDevice(ids, 1), experts=3).tolist() == [[0, 1, 1]]
    with pytest.raises(routepack.InvalidInput, match=r"DLPack type 2\), wanted one in host memory; tensor.cpu\(\)"):
        routepack.count_routes(OnDevice(ids, 2), experts=3)


def test_the_buffer_protocol_is_enough():
    raw = memoryview(array.array("H", [1, 2, 2, 0])).cast("B").cast("H", shape=[2, 1, 2])
    assert routepack.count_routes(raw, experts=3).tolist() == [[1, 1, 2]]


def test_torch_tensors_are_counted_in_place():
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[[1, 2]], [[2, 0]]], dtype=torch.int16)
    assert routepack.count_routes(ids, experts=3).tolist() == [[1, 1, 2]]


# Laws.


@given(st.data())
def test_counting_is_numpys_counting(data):
    experts = data.draw(st.integers(1, 300))
    dtype = data.draw(st.sampled_from([d for d in DTYPES if np.iinfo(d).max >= experts - 1]))
    k = data.draw(st.integers(1, min(experts, 10)))
    tokens, layers = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 4))
    ids = random_routes(np.random.default_rng(data.draw(st.integers(0, 2**32))), tokens, layers, k, experts)
    if experts > 1:
        ids[(ids == 0).all(axis=2)] = 1  # a lone 0 may mean «not recorded»
    axes = data.draw(st.permutations([0, 1, 2]))
    stored = np.ascontiguousarray(ids.astype(dtype).transpose(axes)).transpose(np.argsort(axes))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens)), dtype=bool)
    counts = routepack.count_routes(stored, experts=experts, mask=mask)
    wanted = np.zeros((layers, experts), dtype=np.int64)
    if experts > 1:
        wanted = bincount(ids[mask], experts)
    elif mask.any():
        wanted[:] = mask.sum()
    np.testing.assert_array_equal(counts, wanted)


@given(
    st.lists(
        st.integers(-3, 40) | st.sampled_from([-1, 0, 255, 256, 65535, 2**31 - 1, -(2**31)]), min_size=0, max_size=60
    ),
    st.integers(1, 40),
    st.sampled_from(["leave-out", "spread", "refuse"]),
    st.sampled_from(["leave-out", "refuse"]),
)
def test_any_ids_are_counted_or_refused_in_one_line(values, experts, missing, invalid):
    k = 3
    ids = np.array(values[: len(values) // k * k], dtype=np.int64).reshape(-1, 1, k)
    try:
        counts, report = routepack.count_routes_report(ids, experts=experts, missing=missing, invalid=invalid)
    except routepack.InvalidInput as error:
        assert "\n" not in str(error)
        return
    rows = report.recorded + report.spread
    assert counts.sum() == k * rows.sum()
    assert (report.recorded + report.missing == len(ids)).all()


# The builder.


def test_workers_build_parts_that_become_one_window(tmp_path, gptoss_routes):
    whole = routepack.WindowBuilder(experts=32, top_k=4, model="gpt-oss-20b")
    for part in range(3):
        worker = routepack.WindowBuilder(experts=32, top_k=4)
        for sample, ids in gptoss_routes[part::3]:
            worker.add(ids, id=sample, group=part)
        path = tmp_path / f"part{part}.safetensors"
        worker.seal(path)
        assert len(worker) == 0
        whole.merge(path)
    together = routepack.WindowBuilder(experts=32, top_k=4, model="gpt-oss-20b")
    for number, (sample, ids) in enumerate(gptoss_routes):
        together.add(ids, id=sample, group=number % 3)
    assert whole.window().fingerprint == together.window().fingerprint
    joined = routepack.join_windows([tmp_path / f"part{part}.safetensors" for part in range(3)])
    assert joined.samples == 24 and joined.groups is not None and set(joined.groups.tolist()) == {0, 1, 2}


def test_threads_may_add_at_the_same_time(gptoss_routes):
    builder = routepack.WindowBuilder(experts=32, top_k=4, memory_bytes=4096)

    def work(part: int) -> None:
        for sample, ids in gptoss_routes[part::4]:
            builder.add(ids, id=sample)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    window = builder.window()
    for number, (_, ids) in enumerate(sorted(gptoss_routes, key=lambda answer: answer[0])):
        np.testing.assert_array_equal(window.counts[number], bincount(ids, 32))


def test_a_sealed_window_survives_the_crash_of_its_builder(tmp_path):
    import subprocess
    import sys

    code = (
        "import os, sys, numpy as np, routepack\n"
        "builder = routepack.WindowBuilder(experts=2, top_k=1, memory_bytes=8, spill_folder=sys.argv[1])\n"
        "for n in range(2):\n"
        "    for _ in range(9): builder.add(np.ones((3, 1, 1), dtype=np.uint8))\n"
        "    builder.seal(f'{sys.argv[1]}/{n}.safetensors')\n"
        "for _ in range(9): builder.add(np.ones((3, 1, 1), dtype=np.uint8))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.safetensors", "1.safetensors"]
    assert routepack.join_windows(sorted(tmp_path.iterdir())).samples == 18


def test_a_builder_killed_while_it_seals_leaves_a_whole_window(tmp_path):
    import subprocess
    import sys
    import time

    code = (
        "import sys, numpy as np, routepack\n"
        "builder = routepack.WindowBuilder(experts=256, top_k=1, spill_folder=sys.argv[1])\n"
        "while True:\n"
        "    for n in range(20): builder.add(np.full((3, 64, 1), n + 1, dtype=np.uint8))\n"
        "    builder.seal(sys.argv[1] + '/w.safetensors')\n"
    )
    path = tmp_path / "w.safetensors"
    for n in range(6):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as worker:
            deadline = time.monotonic() + 60
            before = path.stat().st_mtime_ns if path.exists() else None
            while (path.stat().st_mtime_ns if path.exists() else None) == before and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.002 * n)  # somewhere in the middle of the next ones
            worker.kill()
        window = routepack.Window.load(path)
        assert window.counts.shape == (20, 64, 256) and int(window.counts.sum()) == 20 * 64 * 3


def test_memory_of_a_builder_is_bounded(tmp_path):
    import subprocess
    import sys

    code = (
        "import resource, sys, numpy as np, routepack\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "builder = routepack.WindowBuilder(experts=256, top_k=1, memory_bytes=1 << 20, spill_folder=sys.argv[1])\n"
        "ids = np.ones((3, 64, 1), dtype=np.uint8)\n"
        "for n in range(100): builder.add(ids)\n"
        "before = peak()\n"
        "for n in range(1900): builder.add(ids)\n"  # 62 MB of counts
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 16  # MiB


def test_counts_can_be_added_ready_made():
    builder = routepack.WindowBuilder(experts=2, top_k=1, layers=[3, 5], pad_counts=np.ones((2, 2), dtype=np.uint32))
    builder.add_counts([[2, 1], [0, 0]], length=3, recorded=[3, 0], atomic=7)
    builder.add_counts(np.array([[1, 1], [2, 0]]), length=2)
    window = builder.window()
    assert window.recorded is not None and window.recorded.tolist() == [[3, 0], [2, 2]]
    assert window.layer_numbers == [3, 5]
    assert window.atomic is not None and window.atomic.tolist() == [7, -1]
    with pytest.raises(routepack.InvalidInput, match="found a count below 0"):
        builder.add_counts([[-1, 1], [0, 0]], length=3)
