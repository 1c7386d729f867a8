"""Jobs, mask beats and data for tests of the masking units."""

import dataclasses
import itertools

import numpy as np

from hdl.masking.job_list import mask_job_layout
from hdl.masking.mask import KINDS, job_layout, mask_beat_layout
from hdl.streams.stream import beat_layout
from sim.golden import masking as model
from sim.payload import pack, to_int

INDEX_BITS = 8
LANES = (1, 2, 4, 8, 16)
#: All sets of kinds of masks, starting with the empty set.
COMBINATIONS = tuple(dict(zip(KINDS, enables, strict=True)) for enables in
                     itertools.product((False, True), repeat=len(KINDS)))
#: Numbers of rows and columns, from one element to more than four beats of 16, with and without a partial last
#: beat.
SIZES = ((1, 1), (1, 16), (2, 7), (5, 33), (16, 16), (17, 3), (70, 70))

_FIELDS = tuple(field.name for field in dataclasses.fields(model.Mask))


def mask(generator, enables, rows, columns):
    """Draw a mask of the given kinds, with bounds inside the matrix or slightly outside it."""
    def index(limit):
        return int(generator.integers(0, limit + 3))

    return model.Mask(
        **enables, diagonal=int(generator.integers(-rows - 1, columns + 2)), length_rows=index(rows),
        length_columns=index(columns), first_row=index(rows) // 2, end_row=index(rows),
        first_column=index(columns) // 2, end_column=index(columns), width=index(max(rows, columns)))


def jobs(generator, count, *, limit=12, kinds=0.3, empty=0.0):
    """Draw small jobs with all shapes and masks; some jobs are empty."""
    result = []
    for _ in range(count):
        rows, columns = (int(value) for value in generator.integers(1, limit, 2))
        columns *= int(generator.integers(1, 4))
        enables = {kind: bool(generator.random() < kinds) for kind in KINDS}
        matrices = int(generator.integers(1, 4))
        if generator.random() < empty:
            rows, columns, matrices = ((0, columns, matrices), (rows, 0, matrices), (rows, columns, 0))[
                generator.integers(3)]
        result.append(model.Job(
            rows=rows, columns=columns, count=matrices, mask=mask(generator, enables, rows, columns)))
    return result


def external(generator, job, density=0.5):
    """Words of an external mask; unused bits of the last word are random."""
    bits = generator.random(-(-job.elements // 32) * 32) < density
    return model.words(bits)


def external_all(generator, jobs):
    """Words of the external masks of all jobs, and the elements that each job's mask keeps."""
    words_of_jobs = [external(generator, job) if job.mask.external else np.zeros(0, np.uint32) for job in jobs]
    return np.concatenate([np.zeros(0, np.uint32), *words_of_jobs]), [
        model.kept(job, words) for job, words in zip(jobs, words_of_jobs, strict=True)]


def job_fields(job, index_bits=INDEX_BITS):
    """Values of the payload fields of a job."""
    fields = {name: int(getattr(job.mask, name)) for name in _FIELDS}
    fields["diagonal"] &= (2 << index_bits) - 1
    return {"rows": job.rows, "columns": job.columns, "count": job.count, "mask": fields}


def job_rows(jobs, index_bits=INDEX_BITS):
    """Pack jobs into the payloads of a port."""
    fields = [job_fields(job, index_bits) for job in jobs]
    return pack(job_layout(index_bits), {
        **{name: [field[name] for field in fields] for name in ("rows", "columns", "count")},
        "mask": {name: [field["mask"][name] for field in fields] for name in _FIELDS},
    })


def number(flags):
    """Convert the flags of all lanes to a number, for each beat."""
    return flags @ (1 << np.arange(flags.shape[1]))


def mask_rows(beats, *, external=True):
    """Pack mask beats into payloads of a port; without ``external``, as after the mask source, no beat is external.
    """
    return pack(mask_beat_layout(beats.keep.shape[1]), {
        "mask": number(beats.mask), "keep": number(beats.keep), "row_end": beats.row_end,
        "external": beats.external & external, "last": beats.last})


def elements(generator, count, lanes, width):
    """Draw random bits for the elements of data beats."""
    return generator.integers(0, 1 << width, (count, lanes), dtype=np.uint64)


def data_rows(elements, keep, last, width):
    """Pack beats (elements, keep bits and ``last``) into the payloads of a port."""
    return pack(beat_layout(elements.shape[1], width), {"elements": elements, "keep": number(keep), "last": last})


def memory_elements(job, lanes):
    """Number of elements that a job occupies in memory, including padding."""
    return job.beats(lanes) * lanes


def job_words(job, lanes, **wrong):
    """The eight words of a job, with some fields replaced by wrong values."""
    mask = job.mask
    fields = {
        "kinds": sum(getattr(mask, kind) << n for n, kind in enumerate(KINDS)), "reserved": 0x155,
        "count": job.count, "rows": job.rows, "columns": job.columns, "elements": memory_elements(job, lanes),
        "diagonal": mask.diagonal & 0xFFFFFFFF, "reserved_end": 0xABCD,
        **{name: getattr(mask, name) for name in (
            "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")},
    } | wrong
    bits = to_int(mask_job_layout(), fields)
    return np.frombuffer(bits.to_bytes(32, "little"), "<u4").astype(np.uint32)


def padded(values, job, lanes):
    """Lay out the matrices of a job as in memory, with padded rows; also return flags of the real elements."""
    columns = -(-job.columns // lanes) * lanes
    shape = job.count, job.rows, columns
    result, real = np.zeros(shape, values.dtype), np.zeros(shape, bool)
    result[..., :job.columns] = values
    real[..., :job.columns] = True
    return result.reshape(-1), real.reshape(-1)
