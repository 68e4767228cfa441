# Kernels are compiled, not called as Python: what Triton says of their types finds faults that are none.
from typing import Any

def __getattr__(name: str) -> Any: ...
