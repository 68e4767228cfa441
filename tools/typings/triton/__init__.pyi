# Kernels are compiled, not called as Python: read as such, their types have faults that are none.
from typing import Any

def __getattr__(name: str) -> Any: ...
