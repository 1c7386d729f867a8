"""Size of a group, the unit in which vectors are partitioned."""

__all__ = ["GROUP"]

#: Number of elements in a group: vectors are partitioned into blocks of whole groups, a zero-value mask covers a
#: group, codes are packed in groups, and the capacity of every memory is a multiple of it.
GROUP = 32
