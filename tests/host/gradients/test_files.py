"""Files of recorded gradients: selection of elements, round trips, and errors."""

import dataclasses
import random

import numpy as np
import pytest

from host.gradients import files
from host.gradients.choice import MAX_RUNS, RUN, is_sampled, runs_of
from host.gradients.files import Sample, addends_of, load, merge, save


def sample(**changes):
    """A sample of a parameter with 5,000 elements, on the first of two ranks in step 4."""
    generator = np.random.default_rng(changes.get("rank", 0))
    fields = {"source": "module0", "parameter": "0.weight", "shape": (50, 100), "step": 4, "rank": 0, "ranks": 2,
              **changes}
    runs = runs_of(fields["parameter"], fields["step"], int(np.prod(fields["shape"])))
    values = generator.standard_normal(sum(count for _, count in runs)).astype(np.float32)
    return Sample(**{"runs": runs, "values": values, **fields})


def test_steps():
    assert [step for step in range(1, 100) if is_sampled(step)] == [1, 2, 4, 8, 16, 32, 64]
    assert not is_sampled(0)


def test_runs():
    """Runs have whole groups in ascending order, one in each part of a gradient, and never more than the limit."""
    seed = 7
    generator = random.Random(seed)
    for _ in range(300):
        length, step = generator.randrange(1 << generator.randrange(1, 24)), generator.randrange(1, 1 << 20)
        limit = 32 * generator.randrange(1, MAX_RUNS * RUN // 32 + 1)
        runs = runs_of("a", step, length, limit)
        ends = [0, *(start + count for start, count in runs)]
        assert all(before <= start and start % 32 == 0 for before, (start, _) in zip(ends, runs, strict=False)), seed
        assert all(end % 32 == 0 or end == length for end in ends[1:])
        assert sum(count for _, count in runs) <= limit
        assert runs == ([(0, length)] if 0 < length <= limit else runs)
        assert runs == runs_of("a", step, length, limit)
    assert len({tuple(runs_of(name, step, 1 << 20)) for name in "ab" for step in range(1, 20)}) == 38


def test_round_trip(tmp_path):
    samples = [sample(rank=rank, step=step, parameter=name, shape=shape)
               for step in (4, 1) for name, shape in (("ä.weight", (300, 7)), ("bias", (31,)), ("scale", ()))
               for rank in range(2)]
    for step in (1, 4):
        for rank in range(2):
            save(tmp_path / files.file_name("module0", step, rank),
                 [each for each in samples if (each.step, each.rank) == (step, rank)])
    (tmp_path / "note.txt").write_text("other files are ignored")
    merge(tmp_path, tmp_path / "all.npz", steps=[4], runs=1)
    first = load(tmp_path)
    assert len(first) == len(samples)
    for read, written in zip(first, sorted(samples, key=lambda each: each.key), strict=True):
        assert read.key == written.key
        assert (read.shape, read.ranks, [*read.runs]) == (written.shape, written.ranks, [*written.runs])
        assert read.values.tobytes() == written.values.tobytes()
    assert [len(each.values) for each in load(tmp_path / "all.npz")] == [31, 31, 1, 1, 256, 256]


def test_addends():
    """Gradients that lack a rank, or that have other elements on some rank, are left out."""
    complete = [sample(rank=rank) for rank in range(2)]
    other = dataclasses.replace(sample(rank=1, parameter="b"), runs=[(0, 1024)])
    addends = addends_of([complete[1], sample(step=8), other, sample(parameter="b"), complete[0]])
    assert [(each.parameter, each.step, each.values.shape) for each in addends] == [("0.weight", 4, (2, 1024))]
    assert addends[0].values[1].tobytes() == complete[1].values.tobytes()


@pytest.mark.parametrize(("changes", "text"), [
    ({"runs": [(0, 32), (16, 32)]}, "runs must be groups of 32 elements in ascending order"),
    ({"runs": [(0, 31)]}, "runs must be groups of 32 elements in ascending order"),
    ({"runs": [(4992, 32)]}, "runs must be groups of 32 elements in ascending order"),
    ({"runs": [(0, 512)]}, "its runs must have 1,024 elements, not 512"),
    ({"rank": 2}, "samples must have printable names, and ranks below the number of ranks"),
    ({"parameter": "a\nb"}, "samples must have printable names, and ranks below the number of ranks"),
    ({"step": 0}, "its array about must have version 1 and samples with the fields of Sample")])
def test_wrong_samples(tmp_path, changes, text):
    path = tmp_path / "a.npz"
    save(path, [dataclasses.replace(sample(), **changes)])
    with pytest.raises(ValueError, match=f"^{path} must have recorded gradients, not damaged or other arrays: "
                                         f"{text}$"):
        load(path)


def test_other_files(tmp_path):
    with pytest.raises(ValueError, match=f"^Recorded gradients must be in a folder or a file, and {tmp_path}/no does "
                                         f"not exist: record them by gradring launch --record-gradients "
                                         f"{tmp_path}/no$"):
        load(tmp_path / "no")
    with pytest.raises(ValueError, match=f"^{tmp_path} must have files of recorded gradients: record them by "
                                         f"gradring launch --record-gradients {tmp_path}$"):
        load(tmp_path)
    np.savez(tmp_path / "a.npz", values=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"a.npz must have .*: it must have the arrays about and values$"):
        load(tmp_path / "a.npz")
    for rank in range(2):
        save(tmp_path / files.file_name("module0", 4, rank), [sample()])
    with pytest.raises(ValueError, match=f"^{tmp_path} must have each parameter once for each step and rank: "):
        load(tmp_path)


def test_folder(tmp_path):
    """A folder must be new, and writable."""
    files.check_folder(tmp_path / "new", "--record-gradients")
    save(tmp_path / "new" / files.file_name("module0", 1, 0), [sample(step=1)])
    with pytest.raises(ValueError, match=f"^--record-gradients must be a folder without recorded gradients, not "
                                         f"{tmp_path}/new: remove its files, or choose another folder$"):
        files.check_folder(tmp_path / "new", "--record-gradients")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=f"^Output must be a folder, not the file {tmp_path}/file$"):
        files.check_folder(tmp_path / "file", "--record-gradients")
