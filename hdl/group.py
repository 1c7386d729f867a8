"""Size of a group, the unit in which elements are dealt."""

__all__ = ["GROUP"]

#: Elements in a group: vectors are dealt to blocks in groups, one mask of zero-value compression covers one, codes
#: are packed by it, and the capacity of every memory is a multiple of it.
GROUP = 32
