"""Check that every PyTorch collective gives the same results and errors in a ring group, a gloo group created by
name, and PyTorch's own gloo group. All values are small integers, so sums are exact."""

import datetime
import inspect
import json
import sys
import warnings

import collective_cases
import collective_functions
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from collective_support import CASES, TYPES, attempt
from torch.distributed import distributed_c10d as c10d

warnings.simplefilter("ignore")

#: Modules that register test cases on import.
MODULES = (collective_cases, collective_functions)

#: Names that are not tested as collectives: functions that manage groups or wait, and members of groups.
OTHERS = {
    "_abort_process_group", "_canonicalize_group_rank", "_check_not_self_rank", "_device_capability",
    "_get_global_rank", "_get_group_size", "_get_object_coll_device", "_get_pg_config", "_get_pg_default_device",
    "_group_or_default_group", "_object_to_tensor", "_prepare_shrink_target_group", "_rank_not_in_group",
    "_tensor_to_object", "destroy_process_group", "get_backend", "get_backend_config",
    "get_default_backend_for_device", "get_pg_count", "init_process_group", "is_backend_available",
    "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched",
    "is_ucc_available", "is_xccl_available", "record_comm",
    "BackendType", "boxed", "group_desc", "group_name", "merge_remote_group", "name", "unbox",
    "use_pg_for_symm_mem_rendezvous",
    "functional.allow_inflight_collective_as_graph_input_ctx", "functional.batch_p2p_ops_inplace",
    "functional.irecv_inplace", "functional.isend_inplace", "functional.wait_tensor",
}


def names():
    """Return the names of all collectives in this version of PyTorch."""
    public = {name for name in dir(dist.ProcessGroup) if not name.startswith("_")}
    public -= {name for name in public if name.isupper()}  # names of backends
    for module, prefix in ((c10d, ""), (functional, "functional."), (differentiable, "nn.")):
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                grouped = "group" in inspect.signature(value).parameters and not (prefix == "functional." and
                                                                                  name.startswith("_"))
                if grouped or not (name.startswith("_") or name.endswith(("_backward", "_setup_context"))):
                    public.add(prefix + name)
    return public


# Functions that compare results.

def maker(dtype):
    def make(count, first):
        values = (torch.arange(count) + first) % 5
        try:
            return values.to(dtype)
        except (RuntimeError, NotImplementedError):  # this type does not support arithmetic
            return values.to(torch.uint8).repeat_interleave(max(dtype.itemsize, 1)).view(dtype)
    return make


def plain(value):
    """Convert a value to a form that can be compared, with the bits of all its tensors."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), bytes(value.detach().contiguous().reshape(-1).view(
            torch.uint8).tolist()).hex()]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def result(name, group, dtype):
    results = []
    with attempt(results):
        make = maker(dtype)
        make(2, 0)
        function, _ = CASES[name]
        results.append(plain(function(group, make)))
    c10d._world.pg_coalesce_state.pop(group, None)  # PyTorch leaves it behind after an error
    return results


def main(path):
    dist.init_process_group(timeout=datetime.timedelta(seconds=900))
    ring = dist.group.WORLD
    gloo = dist.new_group(backend="gloo")
    helper = c10d._new_process_group_helper
    c10d._new_process_group_helper = helper.__wrapped__
    exact = dist.new_group(backend="gloo")
    c10d._new_process_group_helper = helper
    assert type(exact) is dist.ProcessGroup is not type(gloo)
    assert ring.name() == "gradring"
    assert gloo.name() == exact.name() == dist.get_backend(gloo) == "gloo"

    differences = []
    for name, (_, types) in CASES.items():
        for dtype in types:
            expected = result(name, exact, dtype)
            for kind, group in [("ring", ring), ("gloo", gloo)][:2 if dtype == types[0] else 1]:
                if (value := result(name, group, dtype)) != expected:
                    differences.append([name, str(dtype), kind, str(value)[:2000], str(expected)[:2000]])
    known = set(CASES) | OTHERS
    with open(f"{path}/rank{dist.get_rank()}.json", "w") as file:
        json.dump({"differences": differences, "unknown": sorted(names() - known),
                   "cases": len(CASES), "types": len(TYPES)}, file)
    dist.destroy_process_group()


main(sys.argv[1])
