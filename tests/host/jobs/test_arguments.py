"""Arguments of library calls: types and ranges are checked, and numpy types are accepted."""

import contextlib
import fractions
import gc
import inspect
import math
import operator
import re
import subprocess
import sys

import numpy as np
import pytest

import gradring
from host import arguments
from host.arguments import Choice, Integer, Items, Number, Optional, checked
from host.driver.devices import Formats
from host.jobs import simulate as module
from host.jobs.simulate import MomentsWarning
from host.pytorch.jobs import Jobs, Options
from host.pytorch.messages import Open
from host.transports.backdoor import PortTime
from host.transports.session import TransportName
from tests.refusals import refuses


class Buffers:
    length = 64

    def __getattr__(self, name):
        raise AskedError(name)


class AskedError(Exception):
    """Raised when a stub of nodes is asked to do what only real nodes can do."""


class Nodes:
    """Stub of nodes that accepts any buffer and does nothing."""

    nodes, formats = 2, Formats([gradring.NodeConfig()])
    memory = property(lambda self: self)

    def allocate(self, allocation):
        return Buffers()

    def __getattr__(self, name):
        raise AskedError(name)


class Opening:
    """Stand-in for ``open_session`` that records when sessions are opened and closed."""

    def __init__(self):
        self.events = []

    def __call__(self, config, **options):
        self.events.append(options)
        return self

    def __enter__(self):
        self.events.append("open")
        return gradring.Session(Nodes(), gradring.NodeConfig(), {}, lambda: 0, PortTime())

    def __exit__(self, *exception):
        self.events.append("closed")


@pytest.fixture
def opening(monkeypatch):
    opening = Opening()
    monkeypatch.setattr(module, "open_session", opening)
    return opening


def job(**options):
    return gradring.simulate(**{"nodes": 2, "length": 64, "optimizer": gradring.SGD(0.1), **options})


#: Library functions, each with the arguments of a valid call.
CALLS = {
    "simulate": lambda **options: job(**options),
    "node_for": lambda **options: gradring.node_for(**{"length": 64, "nodes": 2, **options}),
    "open_session": lambda **options: gradring.open_session(
        **{"config": gradring.NodeConfig(), "nodes": 2, **options}),
    "Job": lambda **options: gradring.Job(**{"session": job().session, "lengths": [64], **options}),
    "Job.all_reduce": lambda **options: job(optimizer=None).all_reduce(**{"values": None, **options}),
    "Job.load": lambda **options: job().load(**{"weights": None, **options}),
    "Job.step": lambda **options: job().step(**{"gradients": np.zeros((2, 64), np.float32), **options}),
    "Job.restore": lambda **options: job().restore(**options),
    "Job.own": lambda **options: job().own(**options),
    "SGD": lambda **options: gradring.SGD(**{"learning_rate": 0.1, **options}),
    "Adam": gradring.Adam,
    "AdamW": gradring.AdamW,
}

#: Methods of a job that take no arguments.
WITHOUT = {"Job.state", "Job.close"}

#: Values that are wrong for some parameters, and most of them for nearly all parameters.
VALUES = [
    object(), gradring.Adam, gradring.Adam(), "2", "adam", "[/b]\n", b"2", True, np.True_, None, -1, 0, 2, 1.5, -0.5,
    math.nan, math.inf, -math.inf, 10**400, 1j, [], [1.5], ["a"], [object()], {}, {"clock": "x"}, (1, 2, 3),
    np.float32(1.5), np.array(1.5), np.array(["x", "y"]), np.zeros((2, 2)), np.array([None]), lambda: None, math,
    TransportName.PYSIM, "x" * 1000, fractions.Fraction(-1, 3)]

#: Parameters that accept many of the invalid values above.
FREE = {"announce", "say"}


def parameters():
    for name in CALLS:
        signature = inspect.signature(operator.attrgetter(name)(gradring))
        for parameter in signature.parameters:
            if parameter != "self":
                yield pytest.param(name, parameter, id=f"{name}-{parameter}")


@pytest.mark.parametrize(("name", "parameter"), [*parameters()])
def test_wrong_values(name, parameter, opening):
    """If a parameter has a wrong value, it is rejected with one line that gives the parameter, the expected kind, and
    the value."""
    refused = 0
    for value in VALUES:
        opening.events.clear()
        try:
            CALLS[name](**{parameter: value})
        except (TypeError, ValueError) as error:
            text = str(error)
            assert re.fullmatch(r"[A-Z][^\n]* must [^\n]{1,400}", text), text
            assert ", not " in text or re.search(r" with a node|: [a-z]", text), text
            refused += 1
        except AskedError:
            pass  # value was valid
    assert refused >= (3 if parameter in FREE else 15)
    # A plain object is never a valid argument.
    with pytest.raises(TypeError, match=r"^[A-Z][a-z' ]* must be [^\n]+, not [^\n]+$"):
        CALLS[name](**{parameter: object()})


def test_all_walked():
    """The tests cover every function that the library exports, and every method of a job."""
    methods = {f"Job.{name}" for name, value in vars(gradring.Job).items()
               if inspect.isfunction(value) and not name.startswith("_")}
    assert methods == {name for name in CALLS if "." in name} | WITHOUT
    functions = {name for name in gradring.__all__ if inspect.isfunction(getattr(gradring, name))}
    assert functions == {"node_for", "open_session", "simulate", "train"}  # ``train`` checks its own arguments
    assert functions - {"train"} | {"Job", "SGD", "Adam", "AdamW"} <= CALLS.keys()


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"optimizer": "adam"}, TypeError, "Optimizer must be None or an optimizer, as in gradring.Adam(1e-3), or a "
                                       "sequence of them, not 'adam'"),
    ({"optimizer": gradring.Adam}, TypeError, "Optimizer must be None or an optimizer, as in gradring.Adam(1e-3), or "
                                              "a sequence of them, not the class Adam"),
    ({"nodes": "2"}, TypeError, "Nodes must be an integer from 1 to 255, not '2'"),
    ({"nodes": True}, TypeError, "Nodes must be an integer from 1 to 255, not True"),
    ({"nodes": 0}, ValueError, "Nodes must be an integer from 1 to 255, not 0"),
    ({"arithmetic": "native"}, TypeError, "Arithmetic must be one of Arithmetic.GATEWARE, Arithmetic.NATIVE, not "
                                          "'native'"),
    ({"check": 1}, TypeError, "Check must be True or False, not 1"),
    ({"density": "1"}, TypeError, "Density must be None or a finite number above 0 and at most 1, not '1'"),
    ({"node": gradring.NodeConfig}, TypeError, "Node must be None or a NodeConfig, not the class NodeConfig"),
])
def test_messages(options, error, message, opening):
    with pytest.raises(error) as caught:
        job(**options)
    assert str(caught.value) == message
    assert opening.events == []


@pytest.mark.parametrize("options", [
    {"nodes": np.int64(2)}, {"length": np.prod((8, 8))}, {"length": np.array([32, 32])}, {"length": (np.int32(64),)},
    {"check": np.True_}, {"part": np.uint16(64)}, {"threads": np.int8(1)}, {"density": np.float32(0.5)},
    {"optimizer": [gradring.SGD(np.float32(0.5))]}])
def test_numpy(options, opening):
    """Numpy integers, numbers and booleans are accepted and converted to Python types."""
    with job(**options) as made:
        assert made.length == 64
    for value in (*opening.events[0].values(), made.length, *vars(gradring.Adam(np.float32(0.5), eps=1)).values()):
        assert type(value).__module__ != "numpy"


def test_closing(opening, monkeypatch):
    """A job is closed at the end of its block, by close(), or when nothing refers to it. Closing it twice has no
    effect."""
    with job() as made:
        assert opening.events[1:] == ["open"]
    assert opening.events[1:] == ["open", "closed"]
    made.close()
    assert opening.events[1:] == ["open", "closed"]
    for use in (lambda: made.all_reduce(np.zeros((2, 1), np.float32)), made.state, lambda: made.load(np.zeros(64)),
                lambda: made.step(np.zeros((2, 64), np.float32)), lambda: made.restore({}), made.__enter__):
        refuses("Job must be open, not closed: make another by simulate()", use)
    opening.events.clear()
    job().close()
    assert opening.events[1:] == ["open", "closed"]
    opening.events.clear()
    assert job().nodes == 2
    gc.collect()
    assert opening.events[1:] == ["open", "closed"]
    # A session that the caller has opened stays open.
    opening.events.clear()
    outer = job()
    inner = gradring.Job(outer.session, [64])
    inner.close()
    assert opening.events[1:] == ["open"]
    # Nothing stays open if the creation of a job fails.
    opening.events.clear()
    monkeypatch.delattr(Nodes, "allocate")
    with pytest.raises(AskedError):
        job()
    assert opening.events[1:] == ["open", "closed"]


#: A script that, like a notebook, never closes its job, and may fork a child process with a copy of the job.
UNCLOSED = """
import os, sys
from tests.host.jobs.test_arguments import Opening, gradring, module
class Loud(Opening):
    def __exit__(self, *exception):
        print("closed", flush=True)
module.open_session = Loud()
job = gradring.simulate(nodes=2, length=64)
if sys.argv[1] == "child" and not os.fork():
    sys.exit(0)
if sys.argv[1] == "child":
    os.wait()
print(job.nodes, flush=True)
"""


@pytest.mark.parametrize("child", ["", "child"])
def test_end_of_process(child):
    """A job that is still open when its process ends is closed exactly once, and nothing is printed about it."""
    ended = subprocess.run([sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", UNCLOSED, child],
                           capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "2\nclosed\n"), ended.stderr
    assert "Error" not in ended.stderr
    assert "Warning" not in ended.stderr


def test_moments_that_stay(opening):
    """A warning at the caller's line names the factor with which bfloat16 moments never decay."""
    with pytest.warns(MomentsWarning, match=r"^moments as bfloat16 stop decaying with b2 = 0\.999: ") as caught:
        job(optimizer=gradring.Adam(), packed_state=True).close()
    assert caught[0].filename == __file__
    # In a launched script, jobs report the factor once instead of issuing a warning.
    said = []
    with contextlib.ExitStack() as stack:
        jobs = Jobs(Options(nodes=2, packed_state=True), stack, say=said.append)
        for optimizer in (gradring.Adam(), gradring.Adam(), gradring.SGD(0.1)):
            with contextlib.suppress(AskedError):  # raised by the stub, which has no elapsed time
                jobs.answer([Open(lengths=(64,), optimizers=(optimizer,))])
    assert said == [str(caught[0].message)]
    job(optimizer=gradring.Adam()).close()
    job(optimizer=gradring.Adam(betas=(0.9, 0.99)), packed_state=True).close()


# Tests of the checks themselves.

def test_kinds():
    assert Number(0).take("X", fractions.Fraction(1, 3)) == fractions.Fraction(1, 3)
    assert type(Number().take("X", np.float64(2))) is float
    assert Number(0, 1).wanted() == "a finite number from 0 to 1"
    assert Number(0, 1, above=True, below=True).wanted() == "a finite number above 0 and below 1"
    for low, high in ((0, 0), (1, 1)):
        with pytest.raises(ValueError, match=r"^X must be a finite number above 0 and below 1, not"):
            Number(0, 1, above=True, below=True).take("X", low or high)
    assert Integer(0).wanted() == "an integer of at least 0"
    assert Optional(Choice(("a", "b"))).take("X", None) is None
    assert Items((Integer(0), Integer(5)), "a pair").take("X", np.array([1, 5])) == (1, 5)
    assert arguments.represent(np.zeros((40, 40))) == arguments.represent(np.zeros((40, 40)))[:80]


def test_checked_together():
    """Arguments are checked together with the defaults of omitted arguments. Errors that Python itself raises are
    unchanged."""
    seen = []

    @checked(lambda **options: seen.append(options), count=Integer(1))
    def call(count, /, other=3):
        return count, other

    assert call(np.int64(1)) == (1, 3)
    assert seen == [{"count": 1, "other": 3}]
    with pytest.raises(TypeError, match=r"call\(\) got an unexpected keyword argument 'third'$"):
        call(1, third=3)
