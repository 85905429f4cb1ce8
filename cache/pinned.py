"""Page-locked host memory of exactly the size asked for, which a GPU copies from at full speed and reads in place.

torch's own rounds each request up to a power of two.
"""

from __future__ import annotations

import math
import mmap

import torch

_PORTABLE, _MAPPED = 1, 2


class PinnedSegment:
    """Memory for one tensor. lock: False leaves the pages unlocked, for a machine without a GPU.

    Raises MemoryError when there is no room, or when the system does not let so much be locked.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, lock: bool = True) -> None:
        count = math.prod(shape)
        size = max(1, count * dtype.itemsize)
        try:
            self._memory = mmap.mmap(-1, size)
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError(f"no memory for {size / 2**30:.1f} GiB on the host") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # locking goes page by page, and these are 512 times fewer
            try:
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass
        self.tensor = torch.frombuffer(self._memory, dtype=dtype, count=count).view(shape)
        self._locked = False
        if lock and count:
            # all cores touch the pages first: the system alone would, one by one, while it locks them
            self.tensor.view(torch.uint8).zero_()
            self._lock(size)

    def _lock(self, size: int) -> None:
        code = int(torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), size, _PORTABLE | _MAPPED))
        if code:
            try:
                # the fault stays on record until somebody asks
                torch.cuda.synchronize()
            except RuntimeError:
                pass
            self.close()
            raise MemoryError(f"the system does not let {size / 2**30:.1f} GiB of host memory be locked (CUDA error {code}; see ulimit -l)")
        self._locked = True

    def close(self) -> None:
        """Give the memory back; the tensor must not be used afterwards."""
        if self._locked:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
            self._locked = False
        # the mapping goes with the last tensor on it
        self.tensor = self._memory = None
