"""Jobs of a sweep, and the sources on which their results depend."""

from host.labs.sweep import jobs as sweep_jobs
from host.labs.sweep.jobs import JobKind


def test_sources():
    """The sources of a run are all modules that it imports, directly or indirectly, other than modules that only
    present results."""
    names = {str(path.relative_to(sweep_jobs.ROOT)) for path in sweep_jobs.files_of(JobKind.RUN)}
    assert names >= {"hdl/node.py", "hdl/floating/add.py", "host/models/layers.py", "host/driver/ring.py",
                     "host/training/trainer.py", "hdl/features/mx/coding.py", "host/features/programs/execution.py",
                     "sim/golden/features/mx/shared_exponent.py",
                     "sim/__init__.py", "sim/golden/ring.py", "sim/golden/codecs.py", "sim/verilated/ring.cpp",
                     "sim/verilated/ring.h", "sim/verilated/ring_link.h"}
    assert not names & {"host/commands/train.py", "host/reports/training_picture.py", "host/reports/report.py",
                        "host/labs/sweep/plan.py", "host/labs/sweep/page.py"}
    builds = {str(path.relative_to(sweep_jobs.ROOT)) for path in sweep_jobs.files_of(JobKind.BUILD)}
    assert "hdl/features/mx/coding.py" in builds
    assert not {name for name in names if name.startswith(("tests", "boards"))}
    assert len({sweep_jobs.sources(kind) for kind in JobKind}) == 4
