# amaranth: UnusedElaboratable=no
"""Stored results of a sweep's jobs are used again, unless they are outdated."""

import dataclasses

import pytest

from host.labs.sweep import execution
from host.labs.sweep import jobs as sweep_jobs
from host.labs.sweep.jobs import Job, JobKind, load, store
from tests.host.labs.sweep.results_of_plan import built

BUILD = Job(kind=JobKind.BUILD, name="build", parameters={"configuration": {}})
RUN = Job(kind=JobKind.RUN, name="run", parameters={"nodes": 2}, needs=("build",))


class TestResults:
    def test_kept_and_found(self, tmp_path):
        library = built(tmp_path / "built")
        assert execution.pending([BUILD, RUN], tmp_path) == [BUILD, RUN]
        store(tmp_path, BUILD, {"library": str(library)}, 3.0)
        assert load(tmp_path, BUILD) == {"library": str(library)}
        assert execution.pending([BUILD, RUN], tmp_path) == [RUN]
        library.write_text("another")
        assert execution.pending([BUILD, RUN], tmp_path) == [BUILD, RUN]
        store(tmp_path, RUN, {"loss": 1.0}, 3.0)
        assert execution.pending([BUILD, RUN], tmp_path) == []  # no remaining job needs the library
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["built", BUILD.file, RUN.file])

    def test_stale(self, tmp_path, monkeypatch):
        store(tmp_path, RUN, {"loss": 1.0}, 3.0)
        assert load(tmp_path, dataclasses.replace(RUN, parameters={"nodes": 3})) is None
        sources = sweep_jobs.sources
        monkeypatch.setattr(sweep_jobs, "sources", lambda kind: sources(kind) + "changed")
        assert load(tmp_path, RUN) is None
        assert execution.pending([RUN], tmp_path) == [RUN]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": "0"}'])
    def test_damaged(self, tmp_path, text):
        (tmp_path / RUN.file).write_text(text)
        assert load(tmp_path, RUN) is None
