"""Size of a group, which is the unit of partitioning."""

__all__ = ["GROUP"]

#: Elements in a group: vectors are partitioned into blocks of whole groups, one mask of zero-value compression covers
#: a group, codes are packed in groups, and the capacity of every memory is a multiple of it.
GROUP = 32
