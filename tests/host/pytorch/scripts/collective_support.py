"""Support for test cases of collectives: the registry, the tensors of each rank, and recorded errors."""

import contextlib
import datetime
import functools
import re

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

ENOUGH = datetime.timedelta(seconds=60)

#: Test cases, keyed by PyTorch's name of the tested function. A case is called with a group and with a function that
#: creates a tensor of the type under test.
CASES = {}

OPERATIONS = [value for name, value in vars(dist.ReduceOp).items() if name.isupper() and name != "PREMUL_SUM"]

#: Types used to test functions that differ from other tested functions only in their name.
FEW = [torch.float32, torch.bool]

TYPES = list(dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype)))


def case(*names, types=TYPES):
    """Return a decorator that registers a case under each of ``names``, or under the function's name."""
    def note(function):
        for name in names or [function.__name__]:
            CASES[name] = functools.partial(function, name) if names else function, types
        return function
    return note


def waited(work):
    if work is not None:
        work.wait()


def ranks(group):
    return group.rank(), group.size()


def one(group, make):
    """Tensor with different contents on each rank."""
    return make(6, 1 + group.rank())


def several(group, make, count=3):
    return [make(count, 1 + index + 2 * group.rank()) for index in range(group.size())]


def empties(group, make, count=3):
    return [make(count, 0) for _ in range(group.size())]


@contextlib.contextmanager
def attempt(results):
    """Append the message of an exception to ``results`` instead of propagating the exception."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}".partition("\nException raised from")[0]
        results.append(re.sub(r"'\d+'|0x[0-9a-f]+", "…", text))  # hides group names and addresses


@contextlib.contextmanager
def untouched(group):
    """Make PyTorch create new groups as it does without the launcher, unless the tested group was created by the
    launcher."""
    helper = c10d._new_process_group_helper
    if type(group) is dist.ProcessGroup:
        c10d._new_process_group_helper = helper.__wrapped__
    try:
        yield
    finally:
        c10d._new_process_group_helper = helper
