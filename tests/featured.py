"""For each feature, the options of a node that has it and one of its gateware files."""

#: For each feature, the dictionary for :func:`hdl.config.forms.from_dict` and a file in ``hdl/features/<name>``.
FEATURED = {
    "grid": ({"topology": {"kind": "grid"}}, "switch"),
    "replay": ({"link": {"kind": "replay"}}, "window"),
    "slots": ({"link": {"kind": "slots"}, "programs": {}}, "table"),
    "streaming": ({"role": {"kind": "worker", "broadcast_formats": True}}, "fetch"),
    "programs": ({"programs": {}}, "program_memory"),
    "compute": ({"compute": {}}, "gemm"),
    "block_operands": ({"compute": {"operands": "mx9"}}, "block_sums"),
    "codebook_layers": ({"compute": {"codebook": 16}}, "centroid_layer"),
    "far": ({"compute": {"far": 1024}}, "mover"),
    "compute_stub": ({"stub": {}}, "compute_model"),
    "quorum": ({"stub": {"quorum": True}, "link": {"kind": "replay"}, "programs": {}}, "closer"),
    "quantization": ({"features": [{"kind": "quantization"}]}, "requantizer"),
    "settable_version": ({"features": [{"kind": "settable_version"}]}, "collective"),
    "tenants": ({"features": [{"kind": "tenants"}]}, "windows"),
    "throttles": ({"features": [{"kind": "throttles"}]}, "pace"),
    "bf16": ({"weights": {"codec": "bf16"}}, "codec"),
    "mx": ({"gradients": "mx6"}, "quantizer"),
    "table": ({"weights": {"codec": "table32"}}, "encoder"),
    "codebook": ({"weights": {"codec": "centroid16"}}, "search"),
    "reproducible": ({"gradients": "sum32"}, "quantizer"),
    "microbatches": ({"gradients": "sum32", "features": [{"kind": "microbatches"}]}, "group_jobs"),
    "nvfp4": ({"gradients": "nvfp4"}, "scale"),
}
