"""Hand-checked cycle counts of the golden models of the encoder and the decoder."""

import numpy as np

from sim.golden.features.codebook.centroid import CentroidTable
from tests.features.codebook.cycles import trace_decoder, trace_encoder


def flags(text):
    return [mark == "#" for mark in text]


def test_encoder_by_hand():
    """Table words leave after two cycles, one per cycle; meanwhile the encoder keeps the first eight indices."""
    always, table = np.ones(12, bool), CentroidTable(centroids=4)
    trace = trace_encoder(table, [32], lanes=8, table_willing=always, willing=always, ready=always)
    assert trace.scan_ready.tolist() == flags("####....####")
    assert trace.scan_valid.tolist() == flags("####........")
    assert trace.i_ready.tolist() == flags("#...########")
    assert trace.i_valid.tolist() == flags("#######.....")
    assert trace.offered.tolist() == [-1, -1, 0, 1, 2, 3, -1, 4, -1, 5, -1, -1]
    assert trace.o_valid.tolist() == [index >= 0 for index in trace.offered.tolist()]


def test_decoder_by_hand():
    """The decoder takes the hand-computed numbers of cycles for packets with and without a table."""
    always = np.ones(16, bool)
    table = CentroidTable(centroids=4)
    packet = table.encode(np.arange(32) % 4, [1, 2, 3, 4])
    trace = trace_decoder(table, [packet], lanes=8, willing=always, ready=always)
    taken = np.flatnonzero(trace.i_valid & trace.i_ready)
    assert taken.tolist() == [0, 1, 2, 3, 4, 5]
    assert trace.offered.tolist() == [-1] * 9 + [0, 1, 2, 3] + [-1] * 3
    stalled = trace_decoder(table, [packet], lanes=8, willing=always, ready=np.arange(16) >= 12)
    assert stalled.offered.tolist() == [-1] * 9 + [0, 0, 0, 0, 1, 2, 3]
    # A decoder with a loaded table accepts the first eight indices immediately.
    loaded = CentroidTable(centroids=4, loaded=True)
    trace = trace_decoder(loaded, [packet[4:]], lanes=8, willing=always, ready=always)
    assert trace.offered.tolist() == [-1] * 5 + [0, 1, 2, 3] + [-1] * 7
