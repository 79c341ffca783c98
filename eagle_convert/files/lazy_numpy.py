"""numpy as ``np``, imported when it is first used.

Importing numpy takes longer than all else that describing a head from its headers does; ``inspect`` of a folder whose
small tensors raise no question never needs it. ``from .lazy_numpy import np`` reads like the ordinary import, and type
checkers see the ordinary module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    NDArray = Any

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            return getattr(numpy, name)

    np = _Numpy()

__all__ = ["NDArray", "np"]
